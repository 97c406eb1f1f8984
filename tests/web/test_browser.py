"""The page in a real browser: ten journeys from a question to something to take along.

Skipped where there is no Playwright or no Chromium. ``BRIMFUL_AXE`` may name axe-core's
``axe.min.js``, with which every screen is looked at for what keeps people out.
"""

import json
import os
import shutil
import time
from pathlib import Path

import pytest

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine"),
]
AXE = os.environ.get("BRIMFUL_AXE", "")
WIDTHS = {"phone": 390, "desk": 1440}
WAIT_MS = 90_000
CONFIG = {
    "model_type": "llama", "hidden_size": 2048, "intermediate_size": 5632,
    "num_hidden_layers": 22, "num_attention_heads": 32, "num_key_value_heads": 4,
    "vocab_size": 32000, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}  # fmt: skip


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(
    params=[WIDTHS["desk"], pytest.param(WIDTHS["phone"], marks=pytest.mark.long)],
    ids=["desk", "phone"],
)
def visit(request, browser, address):
    """Open the page as somebody new; whatever its console complains of fails the test."""
    complaints, contexts = [], []

    def open_page(path="/", *, width=request.param, scheme="light", language="en-US"):
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, locale=language
        )
        context.grant_permissions(["clipboard-read", "clipboard-write"], origin=address)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(WAIT_MS)
        page.on(
            "console", lambda said: complaints.append(said.text) if said.type == "error" else None
        )
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(path if path.startswith("file:") else address + path)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not complaints


def until(page, expression):
    """Wait until it is so; asked from outside, as the page's policy lets nothing be evaluated."""
    end_s = time.monotonic() + WAIT_MS / 1000
    while not page.evaluate(expression):
        assert time.monotonic() < end_s, expression
        page.wait_for_timeout(50)


def verdict(page, word):
    """Wait until the page says so."""
    sync_api.expect(page.locator("#verdict-line")).to_have_text(word, timeout=WAIT_MS)


def whole(page):
    """Wait until all that belongs to an answer is drawn."""
    whole_of(page, axes=3)


def whole_of(page, axes):
    until(
        page,
        "document.getElementById('answer').getAttribute('aria-busy') === 'false' "
        f"&& document.querySelectorAll('.axis svg').length >= {axes}",
    )


def copied(page):
    return page.evaluate("navigator.clipboard.readText()")


def has_no_overflow(page):
    assert page.evaluate("document.documentElement.scrollWidth") <= page.viewport_size["width"]


def test_a_pasted_configuration_to_a_copied_command(visit):
    page = visit()
    page.locator(".paste summary").click()
    page.locator("#f-config").fill(json.dumps(CONFIG))
    page.locator("#f-what").select_option("full")
    verdict(page, "FITS")
    page.locator("#copy-command").click()
    assert copied(page) == "brimful estimate config.json --method=full --gpus=rtx-4090"


def test_what_does_not_fit_to_what_would(visit):
    page = visit()
    verdict(page, "NO")
    page.locator("#take-fix").click()
    verdict(page, "FITS")
    page.locator("#copy-command").click()
    assert "--activation-checkpointing=full" in copied(page)


def test_a_slider_says_at_once_what_breaks(visit):
    page = visit("/?what=qlora")
    slider = page.locator("#s-seq_len")
    slider.focus()
    for _ in range(5):
        page.keyboard.press("ArrowLeft")
    until(page, "location.search.includes('seq_len=128&')")
    verdict(page, "FITS")
    assert page.locator("#f-seq_len").input_value() == "128"


def test_a_point_is_taken_by_a_click(visit):
    page = visit("/?gpus=h100-80gb")
    whole(page)
    page.locator('.axis[data-axis="micro_batch"] a').nth(2).click()
    until(page, "location.search.includes('micro_batch=4')")
    verdict(page, "NO")
    page.locator("#copy-link").click()
    assert "micro_batch=4" in copied(page)


def test_a_plan_to_the_configuration_of_another_program(visit):
    page = visit("/?what=qlora")
    page.locator("#plan").click()
    page.locator("#plan-take").click()
    verdict(page, "FITS")
    page.locator("#target").select_option("trl")
    page.locator("#take").click()
    page.locator("#take-copy").click()
    text = copied(page)
    assert text.startswith("# brimful export --to trl: llama-3.1-8b")
    assert "load_in_4bit" in text


def test_a_simulation_shows_memory_over_time_with_its_owners(visit):
    page = visit("/?model=smollm2-135m&what=full&seq_len=512")
    page.locator("#simulate").click()
    page.locator("#simulate-job #timeline canvas").wait_for()
    assert page.locator("#simulate-job #owners tbody tr").count() > 3
    with page.expect_download() as download:
        page.locator("#simulate-job a[download]").click()
    assert "Memory over time" in Path(download.value.path()).read_text("utf-8")


def test_the_cheapest_gpu_is_found_and_taken(visit):
    page = visit("/?model=smollm2-135m&what=full&seq_len=1024")
    page.locator("#market").click()
    page.locator("#market-best").wait_for()
    page.locator("tr.cheapest a").click()
    verdict(page, "FITS")
    name = page.locator("#f-gpus").input_value()
    assert name in page.url
    assert page.locator("#market-job.stale").count() == 0  # what it found is of this question
    cancel = page.locator('.cancel[data-of="market"]')
    if cancel.is_visible():
        cancel.click()
    until(page, "document.getElementById('market').disabled === false")


def test_a_plan_is_cancelled_by_a_newer_question(visit):
    page = visit("/?what=qlora")
    page.locator("#plan").click()
    page.locator("#plan-take").wait_for()  # before it is proven
    page.locator("#f-seq_len").fill("2048")
    until(page, "document.getElementById('plan').disabled === false")
    assert "the question has changed" in page.locator("#plan-job .state").text_content()
    assert page.locator("#plan-take").is_hidden()
    assert page.locator("#plan-job.stale").count() == 1


def test_a_plan_for_another_program_is_told_to_it(visit):
    page = visit("/?model=llama-3.2-1b&what=full&gpus=h100-80gb")
    page.locator("#f-program").select_option("axolotl")
    until(page, "location.search.includes('program=axolotl')")
    page.locator("#plan").click()
    page.locator("#plan-job .shown pre").wait_for()
    assert "--for=axolotl" in page.locator("#plan-job .shown pre").text_content()
    page.locator("#plan-take").click()
    until(page, "location.search.includes('precision=bf16&')")  # it trains in no other recipe
    verdict(page, "FITS")
    page.locator("#take").click()
    page.locator("#take-copy").click()
    assert copied(page).startswith("# brimful export --to axolotl")


def test_a_model_that_writes_text_is_swept_and_compared(visit):
    page = visit("/?what=inference")
    whole_of(page, axes=3)
    page.locator('.axis[data-axis="global_batch"] a').nth(4).click()
    verdict(page, "NO")
    page.locator("#keep").click()
    page.locator("#f-weights_format").select_option("nf4", force=True)
    page.locator("#compare table").wait_for()
    assert page.locator("#plan-part").is_hidden()
    page.locator("#market").click()
    page.locator("tr.cheapest").wait_for()


STATIC = Path(__file__).parents[2] / "docs" / "web" / "llama-3.1-8b.html"


def test_the_page_without_a_server(visit):
    page = visit(STATIC.as_uri() + "#gpus=rtx-3090")
    verdict(page, "NO")
    page.locator(".would a").click()
    verdict(page, "FITS")
    page.locator(".sweep").first.locator("a").last.click()
    verdict(page, "NO")
    assert "seq_len=32768" in page.url
    page.locator("#gpus a").last.click()
    verdict(page, "FITS")
    page.locator("#language").click()
    assert page.evaluate("document.documentElement.lang") == "zh"
    has_no_overflow(page)
    check_with_axe(page)


def test_two_settings_side_by_side(visit):
    page = visit("/?gpus=h100-80gb")
    verdict(page, "FITS")
    page.locator("#keep").click()
    page.locator("#f-what").select_option("qlora")
    page.locator("#compare table").wait_for()
    until(page, "document.getElementById('compare').textContent.includes('QLoRA')")
    assert "other=" in page.url
    page.reload()
    page.locator("#compare table").wait_for()


def test_by_the_keyboard_alone(visit):
    page = visit()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    for _ in range(12):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.id") == "f-model":
            break
    page.keyboard.press("Control+A")
    page.keyboard.type("smollm2-135m")
    page.keyboard.press("Enter")
    verdict(page, "FITS")
    assert "smollm2-135m" in page.title()


def test_in_chinese_in_the_dark(visit):
    page = visit("/?gpus=h100-80gb", scheme="dark", language="zh-CN")
    whole(page)
    assert page.evaluate("document.documentElement.lang") == "zh"
    assert page.locator("label[for=f-model]").text_content() == "模型"
    has_no_overflow(page)
    page.locator("#language").click()
    verdict(page, "FITS")
    assert page.evaluate("document.documentElement.lang") == "en"
    assert "gpus=h100-80gb" in page.url


def test_what_was_started_is_cancelled(visit):
    page = visit("/?model=llama-3.1-70b&what=full&gpus=8xh100-80gb")
    page.locator("#simulate").click()
    page.locator('.cancel[data-of="simulate"]').click()
    until(page, "document.getElementById('simulate').disabled === false")
    assert page.locator("#simulate-job .state").text_content() == "Cancelled."


def test_why_and_rules_of_thumb(visit):
    page = visit("/?gpus=h100-80gb&activation_checkpointing=full")
    page.locator("#why").click()
    page.locator("#why-shown #ledger").wait_for()
    page.locator("#rules").click()
    page.locator("#rules-shown table").first.wait_for()


def test_the_command_that_is_copied_is_of_the_question_that_was_answered(visit):
    page = visit("/?gpus=h100-80gb&seq_len=400k")
    page.locator("#answer .notes").wait_for()
    assert "instead the same with" in page.locator("#answer .notes").text_content()
    page.locator("#copy-command").click()
    assert "--max-positions=409600" in copied(page)


def test_what_cannot_be_told_offers_no_other_settings(visit):
    page = visit()
    page.locator("#take-fix").wait_for()
    page.locator(".paste summary").click()
    page.locator("#f-config").fill(json.dumps({**CONFIG, "model_type": "nobody-knows"}))
    page.locator(".untold").wait_for()
    assert page.locator("#take-fix").is_hidden()
    assert page.locator("#trace").is_visible()


def test_a_job_that_is_refused_is_not_done(visit):
    page = visit("/?model=nobody/nothing")
    page.locator("#market").click()
    page.locator("#market-job .refused").wait_for()
    until(page, "document.getElementById('market').disabled === false")
    assert page.locator("#market-job .state").text_content() == "Refused"


def test_a_refusal_is_a_sentence(visit):
    page = visit()
    page.locator("#f-model").fill("../../etc/passwd")
    page.locator(".refused").wait_for()
    assert "reads no file of the machine" in page.locator(".refused").text_content()


def check_with_axe(page):
    """Look for what keeps people out, where axe-core is named."""
    if not AXE:
        return
    source = Path(AXE).read_text("utf-8")
    found = page.evaluate(f"() => {{ {source}; return axe.run(); }}")
    serious = [
        f"{one['id']}: {one['nodes'][0]['html'][:160]} {one['nodes'][0]['failureSummary'][:300]}"
        for one in found["violations"]
        if one["impact"] in {"serious", "critical"}
    ]
    assert not serious, "\n".join(serious)


def with_reasons(visit, scheme):
    page = visit("/?what=qlora", scheme=scheme)
    whole(page)
    page.locator("#why").click()
    page.locator("#why-shown #ledger").wait_for()
    return page


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_cut(visit, scheme):
    page = with_reasons(visit, scheme)
    has_no_overflow(page)


@pytest.mark.skipif(not AXE, reason="BRIMFUL_AXE names no axe-core")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nobody_is_kept_out(visit, scheme):
    page = with_reasons(visit, scheme)
    check_with_axe(page)
