"""The paper's method: from original tokens to losses, without files, devices or loops."""
