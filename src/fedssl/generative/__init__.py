"""Evaluation and use of partially federated generative models (PaDPaF)."""
