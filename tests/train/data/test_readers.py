import csv
import gzip
import json
import subprocess
import sys

import pytest
from tests.train.data.conftest import write_jsonl

from brimful.errors import DataError, InputError
from brimful.train.data.origin import open_origin
from brimful.train.data.records import Record
from brimful.train.data.source import plain_source

RECORDS = [{"text": f"text {number}, héllo\n", "label": number % 3} for number in range(600)]


def write_csv(path, records):
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, records[0])
        writer.writeheader()
        writer.writerows(records)


def write_parquet(path, records):
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist(records), path)


def write_zst(path, records):
    import pyarrow as pa

    with pa.output_stream(str(path), compression="zstd") as file:
        file.write("".join(json.dumps(record) + "\n" for record in records).encode())


def write_saved(path, records):
    import datasets

    datasets.Dataset.from_list(records).save_to_disk(str(path))


def write_splits(path, records):
    import datasets

    one, two = (datasets.Dataset.from_list(part) for part in (records, records[:1]))
    datasets.DatasetDict({"train": one, "test": two}).save_to_disk(str(path))


def write_folder(path, records):
    path.mkdir()
    (path / "README.md").write_text("About the data.")
    (path / ".cache").mkdir()
    write_jsonl(path / ".cache" / "old.jsonl", records[:3])
    write_jsonl(path / "a.jsonl", records[:250])
    (path / "b.jsonl.gz").write_bytes(
        gzip.compress("".join(json.dumps(record) + "\n" for record in records[250:]).encode())
    )


WRITERS = {
    "a.jsonl": write_jsonl,
    "lines.json": write_jsonl,
    "list.json": lambda path, records: path.write_text(json.dumps(records, indent=1)),
    "data.json": lambda path, records: path.write_text(json.dumps({"v": 1, "data": records})),
    "bom.jsonl": lambda path, records: path.write_bytes(
        b"\xef\xbb\xbf" + "\r\n\r\n".join(map(json.dumps, records)).encode()
    ),
    "a.csv": write_csv,
    "a.parquet": write_parquet,
    "a.jsonl.gz": lambda path, records: path.write_bytes(
        gzip.compress("".join(json.dumps(record) + "\n" for record in records).encode())
    ),
    "a.jsonl.zst": write_zst,
    "folder": write_folder,
    "saved": write_saved,
    "splits": write_splits,
}


def read(path, needs=(("text",),), **changes):
    return list(open_origin(plain_source(str(path), **changes), needs).read())


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.filterwarnings("default::DeprecationWarning")
def test_every_format_gives_the_same_records(tmp_path, name):
    path = tmp_path / name
    WRITERS[name](path, RECORDS)
    found = read(path)
    assert all(isinstance(item, Record) for item in found)
    fields = [item.fields for item in found]
    if path.suffix == ".csv":
        fields = [{**record, "label": int(record["label"])} for record in fields]
    assert fields == RECORDS


@pytest.mark.parametrize(
    ("name", "number", "where"),
    [
        ("a.jsonl", 2, "a.jsonl line 3"),
        ("bom.jsonl", 2, "bom.jsonl line 5"),
        ("list.json", 2, "list.json item 3"),
        ("a.csv", 2, "a.csv line 6"),  # every text ends with a line end
        ("a.parquet", 300, "a.parquet row 301"),
        ("folder", 251, "folder/b.jsonl.gz line 2"),
    ],
)
def test_a_record_knows_its_file_and_place(tmp_path, name, number, where):
    path = tmp_path / name
    WRITERS[name](path, RECORDS)
    assert read(path)[number].where == where


def test_a_saved_data_set_without_the_split_names_those_it_has(tmp_path):
    write_splits(tmp_path / "splits", RECORDS[:5])
    assert len(read(tmp_path / "splits", split="test")) == 1
    with pytest.raises(DataError, match="has the splits train, test and split=dev is none"):
        read(tmp_path / "splits", split="dev")


def test_reading_twice_gives_the_same_and_the_fingerprint_follows_the_content(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", RECORDS)
    origin = open_origin(plain_source(str(path)), (("text",),))
    assert list(origin.read()) == list(origin.read())
    before, quick = origin.fingerprint(False), origin.fingerprint(True)
    path.write_text(path.read_text().replace("text 1,", "text 7,"))
    assert origin.fingerprint(False) != before
    assert origin.fingerprint(True) == quick


def test_a_folder_of_text_and_records_is_not_guessed_at(tmp_path):
    write_jsonl(tmp_path / "a.jsonl", RECORDS[:9])
    (tmp_path / "story.txt").write_text("Once.\n" * 50)
    with pytest.raises(DataError, match=r"files of 2 kinds \(jsonl, text\); choose one"):
        read(tmp_path)
    assert len(read(tmp_path, format="jsonl")) == 9
    assert read(tmp_path, format="text")[0].where == "story.txt"


def test_settings_beside_text_do_not_make_it_records(tmp_path):
    (tmp_path / "story.txt").write_text("Once.\n" * 50)
    (tmp_path / "package.json").write_text("{}")
    assert read(tmp_path)[0].where == "story.txt"


def test_a_name_of_the_hub_without_a_network_is_one_sentence(tmp_path):
    code = (
        "from brimful.train.data.origin import open_origin\n"
        "from brimful.train.data.source import plain_source\n"
        "try:\n"
        "    open_origin(plain_source('nobody/no-such-data'), ())\n"
        "except Exception as error: print(type(error).__name__, error)\n"
    )
    environment = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path), "PATH": ""}
    command = [sys.executable, "-c", code]
    run = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert run.stdout.startswith("DataError nobody/no-such-data is no path on this machine")
    assert "offline mode is set" in run.stdout
    assert "\n" not in run.stdout.strip()


@pytest.mark.parametrize("module", ["pyarrow", "datasets"])
def test_a_missing_library_says_what_to_install(tmp_path, monkeypatch, module):
    path = tmp_path / ("a.parquet" if module == "pyarrow" else "saved")
    (write_parquet if module == "pyarrow" else write_saved)(path, RECORDS[:3])
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(InputError, match=rf"need {module}, .*; pip install 'brimful\[data\]'"):
        read(path)


def test_a_source_is_values_only():
    code = (
        "import sys; from brimful.train.data.source import plain_source; plain_source('stdlib');"
        "print([m for m in ('numpy', 'torch', 'transformers', 'datasets') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


@pytest.mark.parametrize("changes", [{"shuffle_buffer": 0}, {"heldout_share": 1.0}])
def test_a_source_out_of_range_says_what_to_give(changes):
    with pytest.raises(InputError, match="is out of range; give"):
        plain_source("x", **changes)
