"""A cluster that does not take us, in one line; test_preflight has one that wants a token."""

import pytest
import ray

from taugrad.platform.launching.cluster import ray_cluster
from taugrad.platform.spec import SpecError

NO_TOKEN = """Failed to connect to GCS. Last connection error: Traceback (most recent call last):
  File "ray/_private/node.py", line 996, in _init_gcs_client
    client = GcsClient(
             ^^^^^^^^^^
ray.exceptions.AuthenticationError: no token.
"""
OTHER_VERSION = """Version mismatch: The cluster was started with:
    Ray: 2.50.0
This process was started with:
    Ray: 2.60.0
"""


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        (NO_TOKEN, "Last connection error: ray.exceptions.AuthenticationError: no token."),
        (OTHER_VERSION, "started with: Ray: 2.50.0 This process was started with: Ray: 2.60.0"),
    ],
)
def test_what_ray_says_is_told_in_one_line(raised, said, monkeypatch):
    def refuse(**_: object) -> None:
        raise ConnectionError("Failed to connect") from RuntimeError(raised)

    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    monkeypatch.setattr(ray, "init", refuse)
    with pytest.raises(SpecError) as refused, ray_cluster():
        pass
    assert (refused.value.source, len(refused.value.problems)) == ("RAY_ADDRESS", 1)
    assert refused.value.problems[0].startswith("10.0.0.1:6379: ")
    assert refused.value.problems[0].endswith(said)
