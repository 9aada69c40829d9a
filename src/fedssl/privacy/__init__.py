"""Privacy of uploads: clipping, noise, accounting, secure aggregation.

Methods and aggregation rules know nothing of this package.
"""
