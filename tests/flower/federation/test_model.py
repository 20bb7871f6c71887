"""The model of a federation as named arrays, and as a file."""

import numpy as np
import pytest
from typer.testing import CliRunner

from fedstale.cli import federation as cli
from fedstale.core import BadInput
from fedstale.flower.federation.state.backup import read_model
from fedstale.flower.federation.state.manifest import write_sealed
from tests.flower.federation.inprocess import InProcess
from tests.flower.federation.parts import TASK, D, N, played, server, table

LAYOUT = {
    "parameters": [
        {"name": "w", "shape": [2, 3], "dtype": "float32"},
        {"name": "b", "shape": [D - 6], "dtype": "float32"},
    ],
    "buffers": [],
}


def trained(folder, strategy="fedstale"):
    """The parameters after two rounds."""
    link = InProcess(TASK, range(N))
    return played(server(folder, link, strategy=strategy), link, table(2))[-1].state.checkpoint.params


@pytest.mark.parametrize("strategy", ["fedavg", "fedstale", "auto", "scaffold"])
def test_the_model_of_the_last_round_has_names_and_shapes(tmp_path, strategy):
    params = trained(tmp_path, strategy)
    write_sealed(tmp_path / "model.json", LAYOUT)
    t, found = read_model(tmp_path)
    assert t == 2
    assert np.array_equal(found["w"], params[:6].reshape(2, 3))
    assert np.array_equal(found["b"], params[6:])


def test_export_writes_a_file_that_others_read(tmp_path):
    safetensors = pytest.importorskip("safetensors.numpy")
    params = trained(tmp_path)
    write_sealed(tmp_path / "model.json", LAYOUT)
    told = invoke("export", tmp_path, "--to", tmp_path / "out" / "model.safetensors")
    assert "round 2, 2 arrays, 7 numbers" in told
    found = safetensors.load_file(tmp_path / "out" / "model.safetensors")
    assert np.array_equal(found["b"], params[6:])


def test_what_cannot_be_exported_is_a_sentence(tmp_path):
    with pytest.raises(BadInput, match=r"must be a file that ends in \.pt, \.safetensors, got 'model.h5'"):
        invoke("export", tmp_path, "--to", "model.h5")
    with pytest.raises(BadInput, match="has no committed round yet"):
        invoke("export", tmp_path, "--to", "model.pt")
    trained(tmp_path)
    with pytest.raises(BadInput, match=r"has no model.json, which names the model's parameters: give server_app"):
        invoke("export", tmp_path, "--to", "model.pt")
    write_sealed(tmp_path / "model.json", {"parameters": LAYOUT["parameters"][:1], "buffers": []})
    with pytest.raises(BadInput, match="describes 6 numbers, but there are 7"):
        invoke("export", tmp_path, "--to", "model.pt")
    checkpoint = tmp_path / "state" / "round-2" / "checkpoint.npz"
    checkpoint.write_bytes(checkpoint.read_bytes()[:-1])
    with pytest.raises(BadInput, match="is damaged"):
        invoke("export", tmp_path, "--to", "model.pt")
    assert not (tmp_path / "model.pt").exists()


def invoke(*arguments):
    return CliRunner().invoke(cli.app, [str(a) for a in arguments], catch_exceptions=False).stdout
