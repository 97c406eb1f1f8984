(function () {
  "use strict";

  var told = JSON.parse(document.getElementById("for-script").textContent);
  var words = told.words, kept = told.kept;
  var form = document.getElementById("question");
  var SETTLED_MS = 350, TYPED_MS = 40;
  var SLIDERS = { seq_len: [7, 20], global_batch: [0, 12], micro_batch: [0, 8], lora_rank: [2, 9] };

  function at(id) { return document.getElementById(id); }

  function question() {
    var fields = {};
    new FormData(form).forEach(function (value, key) {
      if (value.trim() && key !== "lang") fields[key] = value.trim();
    });
    if (fields.config) {
      try { fields.config = JSON.stringify(JSON.parse(fields.config)); } catch (e) { /* told by the server */ }
      delete fields.model;
    }
    return fields;
  }

  function query(fields, more) {
    return new URLSearchParams(Object.assign({}, fields, more || {})).toString();
  }

  function own() { return { lang: told.language }; }

  function post(path, more, signal, fields) {
    return fetch(path, {
      method: "POST", signal: signal, headers: { "Content-Type": "application/json" },
      body: JSON.stringify(Object.assign({}, fields || question(), own(), more)),
    });
  }

  function escaped(text) {
    var box = document.createElement("span");
    box.textContent = text;
    return box.innerHTML;
  }

  // What a stream of lines says, line by line.
  async function lines(response, take) {
    var reader = response.body.getReader(), decoder = new TextDecoder(), rest = "";
    for (;;) {
      var read = await reader.read();
      if (read.done) break;
      rest += decoder.decode(read.value, { stream: true });
      var whole = rest.split("\n");
      rest = whole.pop();
      whole.forEach(function (line) { if (line) take(JSON.parse(line)); });
    }
    if (rest.trim()) take(JSON.parse(rest));
  }

  // ---- The answer, in stages; a newer question ends the older one.

  var running = {};
  var asking = null, settled = null, typed = null;

  function ask(later) {
    clearTimeout(typed);
    typed = setTimeout(begin, later || 0);
  }

  function begin() {
    if (!running.trace) at("trace-job").hidden = true;
    if (asking) asking.abort();
    clearTimeout(settled);
    asking = new AbortController();
    var signal = asking.signal, fields = question();
    history.replaceState(null, "", "/?" + query(fields, Object.assign(own(), kept ? { other: kept } : {})));
    at("language").href = "/?" + query(fields, { lang: at("language").lang });
    at("api").href = "/api/estimate?" + query(fields);
    document.body.dataset.what = fields.what || "";
    supersede();
    at("answer").setAttribute("aria-busy", "true");
    staged(signal).catch(function (error) {
      if (error.name === "AbortError") return;
      at("answer").setAttribute("aria-busy", "false");
      drawRefusal(words.failed);
    });
  }

  async function staged(signal) {
    if (!(await stage("tensors", signal))) return settle(signal);
    await stage("replayed", signal);
    settle(signal);
  }

  function settle(signal) {
    settled = setTimeout(function () {
      stage("whole", signal).catch(quiet);
      sweeps(signal).catch(quiet);
      compare(signal).catch(quiet);
    }, SETTLED_MS);
  }

  function quiet(error) { if (error.name !== "AbortError") at("answer-more").hidden = true; }

  async function stage(name, signal) {
    if (name === "whole") more(words.better);
    var event = await (await post("/api/estimate", { stage: name }, signal)).json();
    if (signal.aborted) return false;
    at("answer").setAttribute("aria-busy", "false");
    more("");
    if (event.event === "refused") { drawRefusal(event.text); return false; }
    drawPart(event.part);
    return Boolean(event.part.html);
  }

  function more(text) {
    at("answer-more").hidden = !text;
    at("answer-more").textContent = text;
  }

  function drawRefusal(text) {
    at("answer").innerHTML = '<p class="refused">' + escaped(text) + "</p>";
    at("answer-detail").innerHTML = "";
    at("verdict-memory").textContent = "";
    at("verdict-line").textContent = words.refused;
    at("verdict-line").className = "";
    at("trace").hidden = true;
    at("take-fix").hidden = true;
  }

  function listed(notes) {
    var items = (notes || []).map(function (note) { return "<li>" + escaped(note) + "</li>"; });
    return items.length ? '<ul class="notes">' + items.join("") + "</ul>" : "";
  }

  var shownCommand = "";

  function drawPart(part) {
    shownCommand = (part.nearest || {}).command || part.command || "";
    if (part.refused) {
      drawRefusal(part.refused);
      drawNearest(part.nearest);
      return;
    }
    at("trace").hidden = !part.untold;
    fix = part.fix || null;
    at("take-fix").hidden = !fix;
    if (part.untold) {
      at("answer").innerHTML = '<p class="untold">' + escaped(part.untold + ". " + words.untold) + "</p>";
      at("answer-detail").innerHTML = "";
      at("verdict-memory").textContent = "";
      at("verdict-line").textContent = "";
      at("verdict-line").className = "";
      return;
    }
    at("answer").innerHTML = listed(part.notes) + part.html;
    at("answer-detail").innerHTML = part.detail || "";
    at("verdict-memory").textContent = part.memory || "";
    at("verdict-line").textContent = part.verdict || "";
    at("verdict-line").className = "word " + (part.verdict || "").toLowerCase();
    document.title = (part.verdict ? part.verdict + ": " : "") + (at("answer").querySelector("h1") || {}).textContent;
    usual(part.settings || {});
  }

  var fix = null;
  at("take-fix").addEventListener("click", function () { fillOver(fix); ask(); at("answer").focus(); });

  // Fields that a strategy says; the others stay as they are.
  function fillOver(fields) {
    var now = question();
    fill(new URLSearchParams(Object.assign(now, fields)));
  }

  function drawNearest(near) {
    if (!near || !(near.html || near.text)) return;
    var box = document.createElement("div");
    var text = (near.text || "").trim();
    box.innerHTML = "<p>" + escaped(words.nearest) + "</p>" + listed(near.notes) +
      (text ? '<pre class="answer-text">' + escaped(text) + "</pre>" : "") + (near.html || "") + (near.detail || "");
    at("answer").appendChild(box);
  }

  // What an empty field stands at is shown in it.
  function usual(settings) {
    Object.keys(settings).forEach(function (key) {
      var field = at("f-" + key);
      if (!field) return;
      if (field.tagName === "INPUT") field.placeholder = settings[key];
      else field.options[0].textContent = field.options[0].dataset.usual + (settings[key] ? " (" + settings[key] + ")" : "");
      moved(key);
    });
  }

  form.querySelectorAll("select").forEach(function (field) {
    if (field.options[0].value === "") field.options[0].dataset.usual = field.options[0].textContent;
  });

  // ---- Sliders beside the numbers that people turn most: powers of two.

  function slider(key) {
    var field = at("f-" + key), range = document.createElement("input");
    range.type = "range";
    range.min = SLIDERS[key][0];
    range.max = SLIDERS[key][1];
    range.step = 1;
    range.id = "s-" + key;
    range.setAttribute("aria-label", form.querySelector('label[for="f-' + key + '"]').textContent);
    range.addEventListener("input", function () {
      field.value = String(Math.pow(2, Number(range.value)));
      range.setAttribute("aria-valuetext", field.value);
      ask(TYPED_MS);
    });
    field.after(range);
    moved(key);
  }

  function moved(key) {
    var range = at("s-" + key);
    if (!range) return;
    var field = at("f-" + key), value = parseFloat(field.value || field.placeholder);
    if (/k$/i.test(field.value)) value *= 1024;
    if (value > 0) range.value = Math.round(Math.log2(value));
    range.setAttribute("aria-valuetext", field.value || field.placeholder || "");
  }

  Object.keys(SLIDERS).forEach(slider);

  // ---- What breaks first.

  async function sweeps(signal) {
    var boxes = Array.prototype.slice.call(document.querySelectorAll(".axis"));
    for (var i = 0; i < boxes.length; i += 1) {
      var event = await (await post("/api/sweep", { axis: boxes[i].dataset.axis }, signal)).json();
      if (signal.aborted) return;
      boxes[i].hidden = event.event === "refused";
      boxes[i].innerHTML = event.html || "";
    }
    at("sweeps-part").hidden = boxes.every(function (box) { return box.hidden; });
  }

  // A link that takes other settings changes the form in place.
  document.addEventListener("click", function (event) {
    var link = event.target.closest("a[data-take]");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    fill(new URL(link.getAttribute("href"), location).searchParams);
    ["plan", "market"].forEach(function (name) { if (link.closest("#" + name + "-job")) keep(name); });
    ask();
  });

  function fill(params) {
    Array.prototype.forEach.call(form.elements, function (field) {
      if (!field.name || field.name === "lang") return;
      var value = params.get(field.name) || "";
      if (field.type === "checkbox") { field.checked = value === "1"; return; }
      if (field.tagName === "SELECT" && value && !Array.prototype.some.call(field.options, function (o) { return o.value === value; })) {
        field.add(new Option(value, value));
      }
      field.value = value;
    });
    Object.keys(SLIDERS).forEach(moved);
  }

  form.addEventListener("input", function (event) {
    if (event.target.type !== "range") { moved(event.target.name); ask(TYPED_MS * 5); }
  });
  form.addEventListener("change", function (event) {
    if (event.target.type !== "range") ask();
  });
  at("f-program").addEventListener("change", function () { ask(); });
  form.addEventListener("submit", function (event) { event.preventDefault(); ask(); });

  // ---- What is started, shows how far it is, and is cancelled; by a newer question too.

  var started = {};

  // What a job was asked: a search and every GPU find the strategy themselves.
  function asked(name) {
    var fields = question();
    if (name !== "simulate") told.strategy.forEach(function (key) { delete fields[key]; });
    if (name === "market") delete fields.program;
    delete fields.hub;
    fields.global_batch = fields.global_batch || at("f-global_batch").placeholder;
    return JSON.stringify(Object.keys(fields).sort().map(function (key) { return [key, fields[key]]; }));
  }

  // The settings are those that it found: it stays what it is.
  function keep(name) { started[name] = asked(name); }

  function supersede() {
    Object.keys(started).forEach(function (name) {
      var is_stale = started[name] !== asked(name), box = at(name + "-job"), state = box.querySelector(".state");
      if (is_stale && running[name]) {
        running[name].why = words.superseded;
        running[name].abort();
      } else if (is_stale !== box.classList.contains("stale")) state.textContent = is_stale ? words.stale : words.done;
      box.classList.toggle("stale", is_stale);
      if (name === "plan") at("plan-take").hidden = is_stale || !planned;
    });
  }

  function job(name, path, more, take, done) {
    var box = at(name + "-job"), button = at(name);
    var cancel = document.querySelector('.cancel[data-of="' + name + '"]');
    if (running[name]) running[name].abort();
    var control = running[name] = new AbortController();
    if (name !== "trace") keep(name);
    box.classList.remove("stale");
    box.hidden = false;
    box.innerHTML = '<p class="state" role="status"></p><pre class="log" tabindex="0" hidden></pre><div class="shown"></div>';
    var state = box.querySelector(".state"), log = box.querySelector(".log"), shown = box.querySelector(".shown");
    state.textContent = words.running;
    var refused = false;
    button.disabled = true;
    if (cancel) cancel.hidden = false;
    function over(text) {
      if (running[name] !== control) return;
      delete running[name];
      button.disabled = false;
      if (cancel) cancel.hidden = true;
      if (text) state.textContent = text;
    }
    post(path, more, control.signal).then(function (response) {
      return lines(response, function (event) {
        if (event.event === "refused") { refused = true; shown.innerHTML = '<p class="refused">' + escaped(event.text) + "</p>"; return; }
        if (event.event === "note") { state.textContent = event.text; }
        if (event.event === "text" || event.event === "note") {
          log.hidden = false;
          log.textContent += event.text + "\n";
          log.scrollTop = log.scrollHeight;
        }
        take(event, shown, log);
      });
    }).then(function () { over(refused ? words.refused : words.done); if (done) done(); }, function (error) {
      over(error.name === "AbortError" ? control.why || words.cancelled : words.failed);
    });
  }

  document.querySelectorAll(".cancel").forEach(function (button) {
    button.addEventListener("click", function () {
      if (running[button.dataset.of]) running[button.dataset.of].abort();
    });
  });

  function drawAnswer(event, shown, log) {
    if (event.event !== "answer") return;
    shown.innerHTML = event.part.html;
    log.hidden = true;
  }

  var planned = null;
  at("plan").addEventListener("click", function () {
    at("plan-take").hidden = true;
    planned = null;
    if (at("f-program").value) at("target").value = at("f-program").value;
    job("plan", "/api/run", { verb: "plan" }, function (event, shown, log) {
      drawAnswer(event, shown, log);
      if (event.event !== "plan") return;
      planned = event.query;
      at("plan-take").hidden = false;
      if (!shown.firstChild) shown.parentNode.querySelector(".state").textContent = words.unproven;
    });
  });
  at("plan-take").addEventListener("click", function () {
    fill(new URLSearchParams(planned));
    keep("plan");
    ask();
    at("main").focus();
    at("main").scrollIntoView();
  });

  at("trace").addEventListener("click", function () {
    var traced = false;
    job("trace", "/api/run", { verb: "estimate" }, function (event, shown, log) {
      drawAnswer(event, shown, log);
      traced = traced || event.event === "answer";
    }, function () { if (traced) ask(500); });
  });

  at("simulate").addEventListener("click", function () {
    job("simulate", "/api/run", { verb: "simulate" }, function (event, shown, log) {
      drawAnswer(event, shown, log);
      if (event.event === "sections") {
        var box = document.createElement("div");
        box.innerHTML = event.html;
        shown.appendChild(box);
        box.querySelectorAll(".chart").forEach(window.drawChart);
      }
      if (event.event === "report") {
        var link = document.createElement("a");
        link.href = URL.createObjectURL(new Blob([event.text], { type: "text/html" }));
        link.download = "brimful-report.html";
        link.textContent = at("take-report").textContent;
        shown.appendChild(link);
      }
    });
  });

  // What fits comes first, the cheapest of it on top; the rest is behind a button.
  var RANKS = { FITS: 0, TIGHT: 1 };

  function rank(offer) {
    var fits = offer.verdict in RANKS ? RANKS[offer.verdict] : 2;
    return [fits, offer.usd === null ? Infinity : offer.usd];
  }

  function insert(row, offer, kinds, bodies) {
    var own = rank(offer), body = bodies[own[0] === 2 ? 1 : 0];
    var next = Object.keys(kinds).map(function (gpu) { return kinds[gpu]; }).filter(function (kind) {
      var other = rank(kind.offer);
      return kind.row.parentNode === body && (other[0] > own[0] || (other[0] === own[0] && other[1] > own[1]));
    }).reduce(function (first, kind) {
      return first && first.compareDocumentPosition(kind.row) & 4 ? first : kind.row;
    }, null);
    body.insertBefore(row, next);
  }

  at("market").addEventListener("click", function () {
    var best = null, kinds = {}, bodies = [], more = document.createElement("button");
    at("market-best").hidden = true;
    more.type = "button";
    job("market", "/api/gpus", {}, function (event, shown) {
      if (event.event === "table") {
        shown.innerHTML = event.html;
        bodies = [shown.querySelector("tbody"), document.createElement("tbody")];
        bodies[1].className = "rest";
        bodies[1].hidden = true;
        bodies[0].after(bodies[1]);
        shown.appendChild(more);
        more.hidden = true;
        more.setAttribute("aria-expanded", "false");
      }
      if (event.event !== "row") return;
      var holder = document.createElement("tbody");
      holder.innerHTML = event.html;
      var row = holder.firstElementChild, offer = event.offer;
      if (kinds[offer.gpu]) kinds[offer.gpu].row.remove();
      delete kinds[offer.gpu];
      insert(row, offer, kinds, bodies);
      kinds[offer.gpu] = { row: row, offer: offer };
      more.hidden = !bodies[1].children.length;
      more.textContent = words.others.replace("{n}", bodies[1].children.length);
      if (offer.verdict !== "FITS" || !offer.is_last || (best && best.offer.usd <= offer.usd)) return;
      if (offer.usd === null) return;
      if (best) best.row.className = "";
      best = { offer: offer, row: row };
      row.className = "cheapest";
      at("market-best").hidden = false;
      at("market-best").textContent = words.cheapest + ": " + offer.description + ", " + row.lastElementChild.textContent;
    });
    more.addEventListener("click", function () {
      bodies[1].hidden = !bodies[1].hidden;
      more.setAttribute("aria-expanded", String(!bodies[1].hidden));
    });
  });

  // ---- Why, side by side, taken along.

  async function show(box, path, more) {
    box.hidden = false;
    box.innerHTML = "<p>" + escaped(words.counting) + "</p>";
    var event = await (await post(path, more)).json();
    box.innerHTML = event.event === "refused" ? '<p class="refused">' + escaped(event.text) + "</p>" : event.html;
  }

  at("why").addEventListener("click", function () { show(at("why-shown"), "/api/why", { about: "reasons" }); });
  at("rules").addEventListener("click", function () { show(at("rules-shown"), "/api/why", { about: "rules" }); });

  async function compare(signal) {
    at("compare-part").hidden = !kept;
    if (!kept) return;
    var event = await (await post("/api/compare", { other: kept }, signal)).json();
    at("compare").innerHTML = event.html || '<p class="refused">' + escaped(event.text || "") + "</p>";
  }

  at("keep").addEventListener("click", function () { kept = query(question()); ask(); });
  at("drop").addEventListener("click", function () { kept = ""; ask(); });

  function copy(text) {
    function done() {
      var box = document.querySelector(".told-copied");
      box.textContent = words.copied;
      setTimeout(function () { box.textContent = ""; }, 2000);
    }
    if (navigator.clipboard) return navigator.clipboard.writeText(text).then(done, function () { byHand(text); done(); });
    byHand(text);
    done();
  }

  function byHand(text) {
    var box = document.createElement("textarea");
    box.value = text;
    document.body.appendChild(box);
    box.select();
    document.execCommand("copy");
    box.remove();
  }

  at("copy-command").addEventListener("click", function () {
    if (shownCommand) copy(shownCommand);
  });
  at("copy-link").addEventListener("click", function () { copy(location.href); });

  at("take").addEventListener("click", async function () {
    var event = await (await post("/api/take", { target: at("target").value })).json();
    var text = at("take-text"), lost = at("take-lost");
    text.hidden = false;
    text.textContent = event.text;
    at("take-copy").hidden = event.event === "refused";
    lost.hidden = !(event.lost && event.lost.length);
    lost.innerHTML = (event.lost || []).map(function (line) { return "<li>" + escaped(line) + "</li>"; }).join("");
  });
  at("take-copy").addEventListener("click", function () { copy(at("take-text").textContent); });

  at("take-report").addEventListener("click", async function () {
    var event = await (await post("/api/take", { target: "report" })).json();
    if (event.event === "refused") { at("take-text").hidden = false; at("take-text").textContent = event.text; return; }
    var link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([event.text], { type: "text/html" }));
    link.download = "brimful-report.html";
    link.click();
  });

  // On a phone the answer is not pushed below thirty settings.
  if (matchMedia("(max-width: 820px)").matches) {
    document.querySelectorAll("#question > details:not(.paste)").forEach(function (box) { box.open = false; });
  }

  window.addEventListener("popstate", function () { fill(new URLSearchParams(location.search)); ask(); });

  begin();
})();
