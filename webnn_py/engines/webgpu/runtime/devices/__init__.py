"""A GPUDevice: adapters, lifetime, pipelines, buffer pools and command tracking."""
