"""How good an encoder is: features, and what kNN, linear probes and fine-tuning make of them."""
