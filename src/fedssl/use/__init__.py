"""What people do with a trained encoder: embed images, find similar ones, fine-tune, export."""
