import os
import signal

import pytest
import torch

torch.set_num_threads(1)
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # a suite under `nohup` inherits that hang-ups are ignored


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory):
    """Tests neither read nor fill the user's stock of layouts."""
    os.environ["DEIR_CACHE"] = str(tmp_path_factory.mktemp("cache"))
