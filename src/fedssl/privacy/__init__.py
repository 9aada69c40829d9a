"""What stands between an upload and the aggregate: clipping, noise, an accountant, secure aggregation, audits.

Methods and aggregation rules know nothing of this package.
"""
