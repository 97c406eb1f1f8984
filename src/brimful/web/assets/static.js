(function () {
  "use strict";

  var told = JSON.parse(document.getElementById("cells").textContent);
  var names = Object.keys(told.axes), language = /^zh/.test(navigator.language) ? "zh" : "en";
  var chosen = { gpus: "rtx-4090", what: "qlora", seq_len: "4096", micro_batch: "1", activation_checkpointing: "none" };
  var LABELS = { gpus: "form.gpus", what: "form.what", seq_len: "form.seq_len", micro_batch: "form.micro_batch",
    activation_checkpointing: "field.activation_checkpointing" };
  var UNITS = [["TiB", 1 << 30], ["GiB", 1 << 20], ["MiB", 1 << 10], ["KiB", 1]];

  function at(id) { return document.getElementById(id); }

  function say(key) { return told.words[language][key]; }

  function made(tag, attributes, text) {
    var element = document.createElement(tag);
    Object.keys(attributes || {}).forEach(function (key) { element.setAttribute(key, attributes[key]); });
    if (text !== undefined) element.textContent = text;
    return element;
  }

  function drawn(tag, attributes, text) {
    var element = document.createElementNS("http://www.w3.org/2000/svg", tag);
    Object.keys(attributes).forEach(function (key) { element.setAttribute(key, attributes[key]); });
    if (text !== undefined) element.textContent = text;
    return element;
  }

  function fill(text, values) {
    return text.replace(/\{(\w+)\}/g, function (whole, key) { return values[key]; });
  }

  function bytes(kib) {
    var unit = UNITS.find(function (each) { return kib >= each[1]; }) || UNITS[3];
    return (kib / unit[1]).toFixed(2) + " " + unit[0];
  }

  function number(value, digits) {
    return value.toLocaleString("en-US", { maximumSignificantDigits: digits || 4 });
  }

  function seconds(value) {
    return value < 1 ? number(value * 1000, 3) + " ms" : number(value, 3) + " s";
  }

  function money(value) {
    return value === null ? "" : number(value, 3) + " USD";
  }

  // ---- A cell by its choices: its number counts through them as an odometer does.

  function cell(choices) {
    var place = names.reduce(function (sum, name) {
      return sum * told.axes[name].length + told.axes[name].indexOf(choices[name]);
    }, 0), found = told.cells[place];
    if (typeof found === "number") return { refused: told.why[found] };
    return { verdict: found[0], need: found[1], usable: found[2], how: told.hows[found[3]], step: found[4],
      speed: found[5], usd: found[6], items: found.slice(7) };
  }

  function changed(changes) { return Object.assign({}, chosen, changes); }

  function take(changes) {
    chosen = changed(changes);
    history.replaceState(null, "", "#" + new URLSearchParams(chosen));
    draw();
  }

  function read() {
    new URLSearchParams(location.hash.slice(1)).forEach(function (value, key) {
      if (told.axes[key] && told.axes[key].indexOf(value) >= 0) chosen[key] = value;
    });
  }

  function spoken(name, value) {
    if (name === "gpus") return told.gpus[value];
    if (name === "what") return say("what." + value);
    if (name === "activation_checkpointing") return say("static." + value);
    return number(Number(value), 6);
  }

  function link(text, changes, title) {
    var element = made("a", { href: "#" + new URLSearchParams(changed(changes)) }, text);
    if (title) element.setAttribute("aria-label", title);
    element.addEventListener("click", function (event) {
      if (event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      take(changes);
    });
    return element;
  }

  // ---- The question.

  function form() {
    var box = at("question");
    box.textContent = "";
    box.setAttribute("aria-label", say("form.model"));
    box.append(made("h1", { class: "model" }, told.model));
    ["what", "gpus", "seq_len", "micro_batch", "activation_checkpointing"].forEach(function (name) {
      var field = made("div", { class: "field" }), select = made("select", { id: "f-" + name });
      told.axes[name].forEach(function (value) { select.append(new Option(spoken(name, value), value)); });
      select.value = chosen[name];
      select.addEventListener("change", function () {
        var changes = {};
        changes[name] = select.value;
        take(changes);
      });
      field.append(made("label", { for: "f-" + name }, say(LABELS[name])), select);
      box.append(field);
    });
    var held = fill(say("static.lead"), { n: number(told.cells.length), model: told.model });
    box.append(made("p", { class: "note" }, held + " " + say("static.others")));
  }

  // ---- The answer.

  function command() {
    var given = ["brimful estimate", told.model].concat(told.flags[chosen.what]);
    names.forEach(function (name) {
      if (name !== "what") given.push("--" + name.replace(/_/g, "-") + "=" + chosen[name]);
    });
    return given.join(" ");
  }

  function sentence(found) {
    var missing = found.need - found.usable;
    var short = missing > 0 ? fill(say("static.short"), { bytes: bytes(missing) }) : "";
    return found.verdict + ": " + fill(say("static.of"), { need: bytes(found.need), usable: bytes(found.usable) }) +
      short + ", " + (found.how === "predicted" ? say("kind.predicted") : found.how);
  }

  function better(found) {
    if (found.verdict === "FITS") return null;
    var best = null;
    told.axes.what.forEach(function (what) {
      told.axes.activation_checkpointing.forEach(function (depth) {
        var changes = { what: what, activation_checkpointing: depth }, other = cell(changed(changes));
        if (other.verdict !== "FITS") return;
        var is_same = what === chosen.what;
        if (!best || (is_same && !best.is_same) || (is_same === best.is_same && other.speed > best.cell.speed)) {
          best = { changes: changes, cell: other, is_same: is_same };
        }
      });
    });
    return best;
  }

  function tone(verdict) { return { FITS: "fits", NO: "no short" }[verdict] || ""; }

  function answer() {
    var box = at("answer"), found = cell(chosen), line = at("verdict-line");
    box.textContent = "";
    line.textContent = found.verdict || "";
    line.className = "word " + tone(found.verdict);
    if (found.refused) { box.append(made("p", { class: "refused" }, found.refused)); return; }
    document.title = found.verdict + ": " + spoken("what", chosen.what) + ", " + told.model + ", " + told.gpus[chosen.gpus];
    box.append(made("h2", { class: "asked" }, [spoken("what", chosen.what), spoken("seq_len", chosen.seq_len) + " tokens",
      told.gpus[chosen.gpus]].join(", ")));
    box.append(made("p", { class: "verdict " + tone(found.verdict) }, sentence(found)));
    var other = better(found), would = made("p", { class: "would" });
    if (other) {
      would.append(say("static.would") + " ", link(
        spoken("what", other.changes.what) + ", " + spoken("activation_checkpointing", other.changes.activation_checkpointing),
        other.changes), ": " + bytes(other.cell.need));
      box.append(would);
    } else if (found.verdict !== "FITS") {
      would.textContent = say("static.nothing");
      box.append(would);
    }
    box.append(bar(found), figures(found), table(found), made("pre", {}, "$ " + command()), copies());
  }

  function figures(found) {
    var list = made("dl", { class: "figures" }), peak = found.items.reduce(function (sum, each) { return sum + each; }, 0);
    [["figure.peak", bytes(peak)], ["figure.speed", found.speed === null ? "" : number(found.speed)],
      ["figure.step", found.step === null ? "" : seconds(found.step)], ["figure.money", money(found.usd)]].forEach(function (pair) {
      if (!pair[1]) return;
      var one = made("div");
      var value = made("dd", {}, pair[1]);
      value.append(made("small", {}, say("kind.predicted")));
      one.append(made("dt", {}, say(pair[0])), value);
      list.append(one);
    });
    return list;
  }

  function bar(found) {
    var scale = Math.max(found.need, found.usable), row = made("div", { class: "bar static-bar", role: "img" }), parts = [];
    found.items.forEach(function (kib, place) {
      if (!kib) return;
      var item = told.items[place];
      parts.push(item[0] + " " + bytes(kib));
      row.append(made("span", { class: "part " + item[1], style: "width:" + 100 * kib / scale + "%", title: item[0] + ": " + bytes(kib) }));
    });
    row.append(made("i", { class: "limit", style: "left:" + 100 * found.usable / scale + "%" }));
    row.setAttribute("aria-label", say("peak.title") + ": " + parts.join(", ") + "; " + say("static.limit") + " " + bytes(found.usable));
    return row;
  }

  function lined(headings, rows, caption, right) {
    var holder = made("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption });
    var whole = made("table"), head = made("tr"), body = made("tbody"), top = made("thead");
    var title = made("caption");
    title.append(made("span", {}, caption));
    whole.append(title);
    headings.forEach(function (heading, place) {
      head.append(made("th", place >= right ? { scope: "col", class: "n" } : { scope: "col" }, heading));
    });
    top.append(head);
    rows.forEach(function (cells) {
      var row = made("tr");
      cells.forEach(function (one, place) {
        var element = place ? made("td", place >= right ? { class: "n" } : {}) : made("th", { scope: "row" });
        element.append(one);
        row.append(element);
      });
      body.append(row);
    });
    whole.append(top, body);
    holder.append(whole);
    return holder;
  }

  function table(found) {
    var peak = found.items.reduce(function (sum, each) { return sum + each; }, 0), rows = [];
    found.items.forEach(function (kib, place) {
      if (!kib) return;
      var name = made("span");
      name.append(made("i", { class: "swatch " + told.items[place][1], "aria-hidden": "true" }), told.items[place][0]);
      rows.push([name, bytes(kib), (100 * kib / peak).toFixed(1) + " %"]);
    });
    return lined([say("static.item"), say("kind.predicted"), say("static.share")], rows, say("peak.title"), 1);
  }

  function copies() {
    var row = made("p", { class: "buttons" }), note = made("span", { class: "told-copied", role: "status" });
    [["take.command", command], ["take.link", function () { return location.href.split("#")[0] + "#" + new URLSearchParams(chosen); }]]
      .forEach(function (pair) {
        var button = made("button", { type: "button" }, say(pair[0]));
        button.addEventListener("click", function () {
          copy(pair[1]());
          note.textContent = say("js.copied");
        });
        row.append(button);
      });
    row.append(note);
    return row;
  }

  function copy(text) {
    function byHand() {
      var box = document.createElement("textarea");
      box.value = text;
      document.body.append(box);
      box.select();
      document.execCommand("copy");
      box.remove();
    }
    if (navigator.clipboard) navigator.clipboard.writeText(text).catch(byHand); else byHand();
  }

  // ---- What breaks first: a disc fits, a cross does not, so that nothing depends on colour.

  function sweep(name) {
    var values = told.axes[name], spots = values.map(function (value) {
      var changes = {};
      changes[name] = value;
      return { value: value, changes: changes, cell: cell(changed(changes)) };
    }).filter(function (spot) { return !spot.cell.refused; });
    var figure = made("figure", { class: "sweep" });
    if (!spots.length) return figure;
    var limit = spots[0].cell.usable, most = 1.08 * Math.max(limit, Math.max.apply(null, spots.map(function (spot) {
      return Math.min(spot.cell.need, 3 * limit);
    })));
    var svg = drawn("svg", { viewBox: "0 0 320 190", role: "group", "aria-label": say("axis." + name) });
    function up(kib) { return 154 - 138 * Math.min(kib, most) / most; }
    var step = 1 << 10;
    while (most / step > 4) step *= 2;
    for (var tick = 0; tick < most; tick += step) {
      var grid = drawn("g", { class: "grid" });
      grid.append(drawn("line", { x1: 46, x2: 306, y1: up(tick), y2: up(tick) }));
      svg.append(grid, drawn("text", { x: 2, y: up(tick) + 4 }, tick ? bytes(tick).replace(".00", "") : "0"));
    }
    var border = drawn("g", { class: "limit-line" });
    border.append(drawn("line", { x1: 46, x2: 306, y1: up(limit), y2: up(limit), "stroke-dasharray": "5 4" }));
    svg.append(border);
    var across = spots.map(function (spot, place) { return 54 + 244 * place / Math.max(1, spots.length - 1); });
    svg.append(drawn("polyline", { class: "trail", fill: "none", points: spots.map(function (spot, place) {
      return across[place] + "," + up(spot.cell.need);
    }).join(" ") }));
    spots.forEach(function (spot, place) { svg.append(mark(name, spot, across[place], up(spot.cell.need))); });
    figure.append(made("h3", {}, say("axis." + name)), svg);
    return figure;
  }

  function mark(name, spot, x, y) {
    var fits = spot.cell.verdict !== "NO", is_here = spot.value === chosen[name], title = spoken(name, spot.value) + ": " + sentence(spot.cell);
    var point = drawn("a", { href: "#" + new URLSearchParams(changed(spot.changes)), class: fits ? "fits-point" : "short-point", "aria-label": title });
    point.append(drawn("title", {}, title), drawn("rect", { class: "touch", x: x - 14, y: y - 14, width: 28, height: 28 }));
    if (is_here) point.append(drawn("circle", { class: "ring", cx: x, cy: y, r: 9, fill: "none" }));
    if (fits) point.append(drawn("circle", { cx: x, cy: y, r: 4.5 }));
    else point.append(drawn("line", { x1: x - 4, x2: x + 4, y1: y - 4, y2: y + 4 }), drawn("line", { x1: x - 4, x2: x + 4, y1: y + 4, y2: y - 4 }));
    var group = drawn("g", is_here ? { class: "here" } : {});
    var label = Number(spot.value) >= 1024 ? Number(spot.value) / 1024 + "k" : spot.value;
    group.append(point, drawn("text", { x: x, y: 172, "text-anchor": "middle" }, label));
    point.addEventListener("click", function (event) {
      if (event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      take(spot.changes);
    });
    return group;
  }

  function kinds() {
    var rows = told.axes.gpus.map(function (name) {
      var found = cell(changed({ gpus: name })), word = made("b", { class: "word " + tone(found.verdict) }, found.verdict || "");
      var row = [link(told.gpus[name], { gpus: name }), word];
      if (found.refused) return row.concat([found.refused, "", ""]);
      return row.concat([fill(say("static.of"), { need: bytes(found.need), usable: bytes(found.usable) }),
        found.speed === null ? "" : number(found.speed), money(found.usd)]);
    });
    var headings = ["market.column.0", "market.column.1", "compare.memory", "market.column.4", "market.column.6"];
    return lined(headings.map(say), rows, say("market.caption"), 2);
  }

  function draw() {
    var focused = document.activeElement && document.activeElement.id;
    document.documentElement.lang = language;
    document.querySelectorAll("[data-say]").forEach(function (element) { element.textContent = say(element.dataset.say); });
    document.querySelectorAll("[data-lang]").forEach(function (element) { element.hidden = element.dataset.lang !== language; });
    at("language").textContent = say("language");
    form();
    answer();
    at("sweeps").textContent = "";
    at("sweeps").append(sweep("seq_len"), sweep("micro_batch"));
    at("gpus").textContent = "";
    at("gpus").append(kinds());
    if (focused && at(focused)) at(focused).focus();
  }

  at("language").addEventListener("click", function () {
    language = language === "en" ? "zh" : "en";
    draw();
  });
  window.addEventListener("hashchange", function () { read(); draw(); });
  at("question").addEventListener("submit", function (event) { event.preventDefault(); });

  read();
  draw();
})();
