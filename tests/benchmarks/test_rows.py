import msgspec
import pytest

from brimful.cost.estimate import estimate
from brimful.errors import FileFormatError
from samples import make_cluster, make_job, make_strategy

WHY = "no such rung in this test"


@pytest.fixture
def row(gpu_rows):
    """A row with the one rung that needs neither torch nor a GPU."""
    cluster = make_cluster(kernels="cuda")
    said = estimate(make_job(), cluster, make_strategy())
    predicted = gpu_rows.Predicted(
        predicted_peak_allocated_bytes=said.predicted_peak_allocated_bytes,
        predicted_phases=said.phases,
        predicted_items=said.items,
        predicted_peak_reserved_bytes=said.predicted_peak_reserved_bytes,
        predicted_process_bytes=said.predicted_process_bytes,
        predicted_step_s=said.predicted_step_s,
        predicted_step_band_s=said.predicted_step_band_s,
        predicted_datasheet_step_s=said.predicted_step_s,
        usable_bytes=said.usable_bytes,
        fits=said.fits,
    )
    return gpu_rows.Row(
        schema=gpu_rows.ROW_SCHEMA,
        case=gpu_rows.Case(
            name="tiny",
            family="full",
            model="tiny-llama",
            layers=0,
            flags=("--precision", "fp32"),
        ),
        predicted=predicted,
        simulated=None,
        measured=None,
        errors=gpu_rows.compare(predicted, None, None),
        failures=(WHY, WHY),
        peers=(),
        absent=(),
        device=cluster.device,
        gpu=cluster.device.description,
        driver="1.2",
        system="Linux",
        command="python run.py",
        commit="unknown",
        date="2026-11-21",
    )


def _measured(gpu_rows, **changes):
    fields = {
        "versions": (),
        "method": "by hand",
        "measured_peak_allocated_bytes": 1024,
        "measured_peak_requested_bytes": 1000,
        "measured_peak_active_bytes": 1024,
        "measured_peak_reserved_bytes": 4096,
        "measured_phases": (),
        "measured_counters": (),
        "measured_items": (),
        "measured_leftover_bytes": 100,
        "measured_peak_host_bytes": None,
        "measured_process_bytes": 8192,
        "process_method": "by hand",
        "measured_steps_s": (1.0, 1.0, 0.5),
        "measured_step_s": 0.5,
        "attention_ops": (),
        "num_alloc_retries": 0,
    }
    return gpu_rows.Measured(**{**fields, **changes})


def _simulated(gpu_rows, num_bytes):
    return gpu_rows.Simulated(
        versions=(),
        kernels="cuda",
        simulated_peak_allocated_bytes=num_bytes,
        simulated_phases=(),
        simulated_fine_phases=(),
        simulated_items=(),
        simulated_peak_block_bytes=num_bytes + 24,
        simulated_peak_reserved_bytes=2 * num_bytes,
        simulated_outcome="fits",
        simulated_peak_host_bytes=0,
        num_events=1,
        simulate_s=0.1,
    )


def test_committed_rows_are_rows(gpu_rows, root):
    files = sorted((root / "validation" / "gpu").glob("nvidia-*.json"))
    assert files
    for path in files:
        rows = gpu_rows.read_rows(path)
        assert len({row.case.name for row in rows}) == len(rows) > 0, path


def test_rows_survive_the_file(gpu_rows, row, tmp_path):
    path = tmp_path / "new" / "rows.json"
    gpu_rows.write_rows(path, [row])
    assert gpu_rows.read_rows(path) == [row]
    assert gpu_rows.read_rows(tmp_path / "none.json") == []


def test_errors_are_signed_and_like_is_compared_with_like(gpu_rows, row):
    measured, simulated = _measured(gpu_rows), _simulated(gpu_rows, 900)
    errors = gpu_rows.compare(row.predicted, simulated, measured)
    assert errors.simulated_to_requested == (900 - 1000) / 1000
    assert errors.simulated_with_leftover_to_requested == 0
    assert errors.simulated_to_allocated == (924 - 1024) / 1024
    assert errors.simulated_to_reserved == (1800 - 4096) / 4096
    said = row.predicted.predicted_peak_allocated_bytes
    assert errors.predicted_to_simulated == (said - 900) / 900
    assert errors.predicted_to_step_s == (row.predicted.predicted_step_s - 0.5) / 0.5
    assert errors.reserved_in_band is False
    assert gpu_rows.compare(None, simulated, None).simulated_to_requested is None


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"schema": "brimful.gpu-row/0"}, "schema"),
        ({"date": "yesterday"}, "not a day"),
        ({"failures": (WHY,)}, "2 rungs are missing and 1 reasons"),
    ],
)
def test_a_row_that_contradicts_itself_is_refused(gpu_rows, row, changes, complaint):
    assert gpu_rows.check_row(row) is row
    with pytest.raises(FileFormatError, match=complaint):
        gpu_rows.check_row(msgspec.structs.replace(row, **changes))


def test_errors_that_are_not_the_numbers_own_are_refused(gpu_rows, row):
    errors = msgspec.structs.replace(row.errors, predicted_to_simulated=0.0)
    with pytest.raises(FileFormatError, match="errors are not those"):
        gpu_rows.check_row(msgspec.structs.replace(row, errors=errors))


def test_items_that_do_not_sum_to_the_peak_are_refused(gpu_rows, row):
    less = msgspec.structs.replace(row.predicted, predicted_items=row.predicted.predicted_items[1:])
    with pytest.raises(FileFormatError, match="items sum to"):
        gpu_rows.check_row(msgspec.structs.replace(row, predicted=less))


def test_counters_that_do_not_rise_are_refused(gpu_rows, row):
    measured = _measured(gpu_rows, measured_peak_requested_bytes=2048)
    wrong = msgspec.structs.replace(
        row,
        measured=measured,
        errors=gpu_rows.compare(row.predicted, None, measured),
        failures=(WHY,),
    )
    with pytest.raises(FileFormatError, match="do not rise"):
        gpu_rows.check_row(wrong)


def test_a_file_that_holds_no_rows_is_refused(gpu_rows, tmp_path):
    path = tmp_path / "rows.json"
    path.write_text('{"schema": "brimful.gpu-row/1"}\n')
    with pytest.raises(FileFormatError, match="no rows"):
        gpu_rows.read_rows(path)
    path.write_text('{"schema": "brimful.gpu/0", "environment": null, "rows": []}')
    with pytest.raises(FileFormatError, match=r"brimful\.gpu/0"):
        gpu_rows.read_rows(path)


def test_a_row_is_whole_where_it_was_measured_or_cannot_be(gpu_rows, row):
    assert not gpu_rows.is_whole(row)
    why = f"measured: {gpu_rows.DOES_NOT_FIT}: 200 GiB of 139 GiB"
    assert gpu_rows.is_whole(msgspec.structs.replace(row, failures=(WHY, why)))
    assert gpu_rows.is_whole(msgspec.structs.replace(row, measured=_measured(gpu_rows)))
