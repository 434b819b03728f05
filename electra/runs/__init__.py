"""Files between the commands: manifests, checkpoints, metrics, saved models and exports."""
