"""``brimful gpus`` and ``brimful gpus NAME``."""

import json

import pytest
from tests.hardware.test_nvidia_smi import H100, TOPOLOGY, node_script

from brimful.cli.main import main
from brimful.hardware.datasheets import datasheets

SHEETS = datasheets()


def said(capsys, *argv):
    assert main(["gpus", *argv]) == 0
    return capsys.readouterr().out


def test_the_table_names_every_gpu_and_tells_nothing_from_unknown(capsys):
    lines = said(capsys).splitlines()
    rows = {line.split()[0]: line.split() for line in lines if line.split()}
    assert set(SHEETS) <= set(rows)
    assert rows["t4"][1:8] == ["14.56", "8.1", "-", "65", "-", "-", "320"]
    assert rows["l20"][3] == rows["l20"][6] == "?"
    assert rows["h800-80gb"][1].startswith("~")
    assert max(map(len, lines)) <= 100


@pytest.mark.few(24)
@pytest.mark.parametrize("name", SHEETS)
def test_one_gpu_in_full_with_sources(capsys, name):
    text = said(capsys, name.upper())
    assert text.startswith(f"{name}: {SHEETS[name].description}")
    for words in ("usable", "bf16 matrices", "pcie-", "power limit", "tensor cores", "https://"):
        assert words in text
    assert max(map(len, text.splitlines())) <= 100


def test_json_carries_everything(capsys):
    told = json.loads(said(capsys, "--json"))
    rows = {row["name"]: row for row in told["gpus"]}
    assert told["schema"] == "brimful.gpus/1"
    assert set(rows) == {"local", *SHEETS}
    assert rows["t4"]["datasheet"]["matrix_flops_per_s"]["bf16"] == 0
    assert rows["l20"]["datasheet"]["matrix_flops_per_s"]["fp8"] is None
    assert rows["t4"]["abilities"]["bf16"] == "emulated"
    assert rows["h100-80gb"]["links"][0]["name"] == "nvlink-4"
    assert rows["h100-80gb"]["kernels"] == "cuda"
    assert rows["h800-80gb"]["usable_memory"]["is_known"] is False
    assert "oom" in rows["t4"]["documents"]
    assert [row["plannable"] for row in (rows["mi300x"], rows["mi100"])] == [True, False]
    assert rows["local"]["node"] == {"gpus": [], "pairs": []}


def test_one_gpu_as_json_is_its_row_of_the_list(capsys):
    rows = {row["name"]: row for row in json.loads(said(capsys, "--json"))["gpus"]}
    assert json.loads(said(capsys, "l4", "--json"))["gpus"] == [rows["l4"]]


def test_gpus_of_this_machine_are_listed_with_their_links(capsys, nvidia_smi):
    nvidia_smi(node_script(f"{H100}\n{H100}", TOPOLOGY))
    text = said(capsys)
    assert "GPUs here, links: NV18 between all" in text
    assert text.count("NVIDIA H100 80GB HBM3, 79.11 GiB") == 2


def test_a_misspelt_gpu(capsys):
    assert main(["gpus", "h100-8gb"]) == 2
    assert "did you mean h100-80gb" in capsys.readouterr().err
