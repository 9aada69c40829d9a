"""Partially federated generative models (PaDPaF): what is content is shared, what is style stays at home."""
