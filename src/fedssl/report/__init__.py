"""Tables, pictures and what a person sees of a run."""
