"""The tests. With WEBNN_TEST_ENGINE=dawn, all GPU contexts run on Dawn in place of wgpu-native."""

import os

if os.environ.get("WEBNN_TEST_ENGINE") == "dawn":  # before anything imports wgpu
    import wgpudawn

    wgpudawn.install_as_wgpu()
