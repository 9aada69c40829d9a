"""Uses of a trained encoder: embed images, find similar ones, fine-tune, export."""
