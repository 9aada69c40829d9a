"""Where an audit is kept in the folder of a run."""

ATTACKS = ("canaries", "membership", "inversion")
TITLES = {
    "canaries": "Does the model show who took part? (canary clients)",
    "membership": "Does the encoder show which images were used? (membership)",
    "inversion": "Can images be rebuilt from an upload? (gradient inversion)",
}
FOLDER, FILE = "privacy-audit", "audit.json"
