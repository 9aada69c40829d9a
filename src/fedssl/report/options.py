"""Config section `log`."""

from __future__ import annotations

from pydantic import Field

from fedssl.options import Options


class LogConfig(Options):
    tensorboard: bool = Field(True, description="write TensorBoard events if TensorBoard is installed")
    audit: bool = Field(
        False,
        description="write audit.jsonl: hashes of every upload and global model, chained "
        "(`fedssl server`: true)",
    )
    wandb: str = Field("", description="Weights & Biases project to log to (extra `wandb`)")
    mlflow: str = Field(
        "", description="MLflow experiment to log to (extra `mlflow`); MLFLOW_TRACKING_URI sets the server"
    )
