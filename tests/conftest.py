import os

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory):
    """Tests neither read nor fill the user's stock of layouts."""
    os.environ["DEIR_CACHE"] = str(tmp_path_factory.mktemp("cache"))
