import msgspec
import pytest

from brimful.errors import InputError, RunError
from brimful.values.plan import read_plan

pytestmark = pytest.mark.torch


def test_a_new_folder_gets_the_plan(tmp_path, plan_with):
    from brimful.train.run_folder import open_run_folder

    assert open_run_folder(plan_with(), tmp_path / "new" / "run", resume=False) is None
    assert read_plan(tmp_path / "new" / "run" / "plan.yaml") == plan_with()


def test_a_folder_in_use_is_refused(tmp_path, plan_with):
    from brimful.train.run_folder import open_run_folder

    (tmp_path / "plan.yaml").touch()
    open_run_folder(plan_with(), tmp_path, resume=False)
    (tmp_path / "metrics.jsonl").touch()
    with pytest.raises(InputError, match=r"is not empty \(metrics\.jsonl\); .*--resume"):
        open_run_folder(plan_with(), tmp_path, resume=False)
    assert open_run_folder(plan_with(), tmp_path, resume=True) is None


def test_token_files_go_to_the_users_cache(tmp_path, monkeypatch):
    from brimful.train.out_folder import token_cache

    monkeypatch.setenv("BRIMFUL_CACHE", str(tmp_path / "cache"))
    assert token_cache(tmp_path / "out") == tmp_path / "cache" / "tokens"


def test_token_files_go_to_the_run_where_the_cache_is_closed(tmp_path, monkeypatch, plan_with):
    from brimful.train.out_folder import token_cache
    from brimful.train.run_folder import open_run_folder

    (tmp_path / "file").touch()
    monkeypatch.setenv("BRIMFUL_CACHE", str(tmp_path / "file" / "cache"))
    cache = token_cache(tmp_path / "out")
    assert cache == tmp_path / "out" / "tokens"
    cache.mkdir(parents=True)
    assert open_run_folder(plan_with(), tmp_path / "out", resume=False) is None


@pytest.mark.parametrize("names", [(), ("holiday.jpg",)])
def test_there_is_nothing_to_resume_in_a_foreign_folder(tmp_path, plan_with, names):
    from brimful.train.run_folder import open_run_folder

    for name in names:
        (tmp_path / name).touch()
    with pytest.raises(InputError, match="holds no run to go on with"):
        open_run_folder(plan_with(), tmp_path, resume=True)


def test_a_file_in_the_way_is_one_sentence(tmp_path, plan_with):
    from brimful.train.run_folder import open_run_folder

    (tmp_path / "out").touch()
    with pytest.raises(RunError, match=r"out cannot be written \(Not a directory\)"):
        open_run_folder(plan_with(), tmp_path / "out", resume=False)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"seed": 8}, r"job\.seed=7 and the plan now says 8"),
        ({"num_steps": 99}, r"job\.num_steps=12 and the plan now says 99"),
        ({"micro_batch": 4}, r"strategy\.micro_batch=2 and the plan now says 4"),
    ],
)
def test_another_plan_is_refused_by_field(plan_with, changes, said):
    from brimful.train.run_folder import check_same_plan

    with pytest.raises(InputError, match=said):
        check_same_plan(plan_with(), plan_with(**changes))


def test_a_field_of_the_model_is_named_to_the_end(plan_with):
    from brimful.train.run_folder import check_same_plan

    plan = plan_with()
    config = {**plan.job.model.hf_config, "rope_theta": 5.0}
    model = msgspec.structs.replace(plan.job.model, hf_config=config)
    other = msgspec.structs.replace(plan, job=msgspec.structs.replace(plan.job, model=model))
    with pytest.raises(InputError, match=r"job\.model\.hf_config\.rope_theta=None .* says 5\.0"):
        check_same_plan(plan, other)


def test_another_job_is_refused_by_field_too(plan_with):
    from brimful.train.run_folder import check_same_job

    check_same_job(plan_with().job, plan_with(micro_batch=1).job)
    with pytest.raises(InputError, match=r"job\.clip=1\.0 and the plan now says 0\.5"):
        check_same_job(plan_with().job, plan_with(clip=0.5).job)


def test_another_estimate_is_the_same_run(plan_with):
    from brimful.train.run_folder import check_same_plan

    plan = plan_with()
    estimate = msgspec.structs.replace(plan.estimate, predicted_step_s=1.5)
    check_same_plan(plan, msgspec.structs.replace(plan, estimate=estimate))


def test_a_gpu_plan_needs_a_gpu():
    import torch

    from brimful.train.run_folder import require_device

    assert require_device("cpu") == "cpu"
    if not torch.cuda.is_available():
        with pytest.raises(RunError, match="this machine has none"):
            require_device("cuda")
