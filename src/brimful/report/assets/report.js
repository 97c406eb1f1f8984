(function () {
  "use strict";

  var KIB = 1024;
  var BYTE_UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];
  var PRINT_WIDTH = 680;

  function bytes(value, digits) {
    var size = Math.abs(value), unit = 0;
    while (size >= KIB && unit < BYTE_UNITS.length - 1) { size /= KIB; unit += 1; }
    return (value < 0 ? "-" : "") + size.toFixed(unit ? digits : 0) + " " + BYTE_UNITS[unit];
  }

  function seconds(value) {
    return value < 1 ? Number((value * 1e3).toPrecision(3)) + " ms" : value.toFixed(2) + " s";
  }

  function spell(unit, value) {
    if (value === null || value === undefined) return "";
    if (unit === "bytes") return bytes(value, 2);
    if (unit === "number") return shortNumber(value);
    return unit === "s" ? seconds(value) : value.toFixed(3);
  }

  // Ticks of a byte axis fall on whole binary units: 256 MiB, 512 MiB, 1 GiB.
  function binarySteps() {
    var steps = [];
    for (var power = 0; power <= 50; power += 1) steps.push(Math.pow(2, power));
    return steps;
  }

  function shortBytes(value) {
    return value === 0 ? "0" : bytes(value, 2).replace(/\.?0+ /, " ");
  }

  function shortSeconds(values) {
    var small = Math.max.apply(null, values) < 1;
    return values.map(function (v) {
      return v === 0 ? "0" : small ? Number((v * 1e3).toPrecision(4)) + " ms" : Number(v.toPrecision(4)) + " s";
    });
  }

  function shortNumber(value) {
    if (value === 0) return "0";
    var size = Math.abs(value);
    return size < 1e-3 || size >= 1e5 ? value.toExponential(1) : String(Number(value.toPrecision(4)));
  }

  function color(name) {
    return getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
  }

  function drawnSeries(chart) {
    return chart.series.map(function (series) {
      var tone = color(series.tone);
      var options = {
        label: series.label,
        stroke: tone,
        width: series.role === "rule" ? 1.5 : 1.25,
        spanGaps: true,
        points: { show: false },
        value: function (u, value) { return spell(chart.unit, value); },
      };
      if (series.role === "area") {
        options.paths = uPlot.paths.stepped({ align: 1 });
        options.fill = color(series.tone + "-fill");
      }
      if (series.role === "steps") options.paths = uPlot.paths.stepped({ align: 1 });
      if (series.role === "rule") options.dash = [6, 4];
      if (series.role === "points") {
        options.points = { show: true, size: 6, fill: tone, stroke: tone };
      }
      return options;
    });
  }

  // "step 1 forward, step 1 backward" reads "step 1 forward, backward".
  function shortNames(phases) {
    return phases.map(function (phase, i) {
      var cut = phase.name.lastIndexOf(" ") + 1;
      var before = i > 0 ? phases[i - 1].name : "";
      return cut && before.slice(0, cut) === phase.name.slice(0, cut) ? phase.name.slice(cut) : phase.name;
    });
  }

  // Phase names stand above the plot where they fit; else their number in the list below it.
  function drawPhases(chart) {
    return function (u) {
      var phases = chart.phases, ctx = u.ctx, scale = devicePixelRatio;
      if (!phases.length) return;
      ctx.save();
      ctx.font = 12 * scale + "px " + getComputedStyle(document.body).fontFamily;
      ctx.fillStyle = color("soft");
      ctx.strokeStyle = color("soft");
      ctx.lineWidth = scale;
      ctx.setLineDash([2 * scale, 3 * scale]);
      ctx.textAlign = "center";
      ctx.textBaseline = "bottom";
      var right = u.bbox.left + u.bbox.width;
      var spans = phases.map(function (phase, i) {
        var next = phases[i + 1];
        var from = Math.max(u.bbox.left, u.valToPos(phase.start, "x", true));
        return [from, Math.min(right, next ? u.valToPos(next.start, "x", true) : right)];
      });
      var labels = shortNames(phases);
      var allFit = labels.every(function (label, i) {
        return ctx.measureText(label).width + 6 * scale < spans[i][1] - spans[i][0];
      });
      phases.forEach(function (phase, i) {
        var from = spans[i][0], to = spans[i][1];
        if (to <= from) return;
        if (i > 0 && from > u.bbox.left) {
          ctx.beginPath();
          ctx.moveTo(from, u.bbox.top - 4 * scale);
          ctx.lineTo(from, u.bbox.top + u.bbox.height);
          ctx.stroke();
        }
        var label = allFit ? labels[i] : String(i + 1);
        if (ctx.measureText(label).width <= to - from) {
          ctx.fillText(label, (from + to) / 2, u.bbox.top - 5 * scale);
        }
      });
      ctx.restore();
    };
  }

  // Above the chart's legend: the phase under the cursor, and whose its bytes are at its peak.
  function tellPhase(chart, box) {
    var told = document.createElement("div");
    told.className = "told";
    box.appendChild(told);
    return function (u) {
      var at = u.cursor.idx === null || u.cursor.idx === undefined ? null : chart.x[u.cursor.idx];
      var inside = chart.phases.filter(function (phase) { return at !== null && phase.start <= at; });
      var phase = inside[inside.length - 1];
      told.textContent = "";
      told.hidden = !phase;
      if (!phase) return;
      var title = document.createElement("b");
      title.textContent = phase.name + ": peak " + bytes(phase.peak, 2);
      told.appendChild(title);
      phase.owners.forEach(function (owner) {
        var line = document.createElement("span");
        line.textContent = bytes(owner[1], 2) + "  " + owner[0];
        told.appendChild(line);
      });
      var left = u.valToPos(at, "x") > u.bbox.width / devicePixelRatio / 2;
      told.style.left = left ? "72px" : "auto";
      told.style.right = left ? "auto" : "14px";
    };
  }

  function yAxis(chart, font) {
    var axis = {
      stroke: color("soft"), font: font, grid: { stroke: color("grid"), width: 1 },
      ticks: { show: false }, size: chart.unit === "nats" ? 44 : 68, gap: 6,
    };
    if (chart.unit === "bytes") {
      axis.incrs = binarySteps();
      axis.values = function (u, values) { return values.map(shortBytes); };
    }
    if (chart.unit === "number") {
      axis.values = function (u, values) { return values.map(shortNumber); };
    }
    if (chart.unit === "s") axis.values = function (u, values) { return shortSeconds(values); };
    return axis;
  }

  function yRange(chart) {
    return function (u, low, high) {
      var top = chart.y_max === null ? high : chart.y_max;
      var margin = ((top - low) || Math.abs(top) || 1) * 0.06;
      if (chart.y_max !== null) margin = 0;
      return [chart.from_zero ? 0 : low - margin, top + margin];
    };
  }

  function draw(box, chart, width) {
    var font = "12px " + getComputedStyle(document.body).fontFamily;
    var hidden = { stroke: color("grid"), width: 1 };
    var hooks = { draw: [drawPhases(chart)] };
    if (chart.phases.length) hooks.setCursor = [tellPhase(chart, box)];
    return new uPlot({
      width: width,
      height: Math.round(Math.max(240, Math.min(360, width * 0.42))),
      padding: [chart.phases.length ? 24 : 10, 14, 0, 0],
      scales: { x: { time: false }, y: { range: yRange(chart) } },
      axes: [
        { label: chart.x_label, labelSize: 20, labelFont: font, font: font, stroke: color("soft"),
          grid: { show: false }, ticks: hidden, size: 32 },
        yAxis(chart, font),
      ],
      series: [{ label: chart.x_label.split(" ")[0], value: function (u, value) {
        return value === null ? "" : String(Math.round(value));
      } }].concat(drawnSeries(chart)),
      cursor: { points: { size: 6 }, drag: { x: true, y: false } },
      legend: { live: true, markers: { width: 0, fill: function (u, i) {
        return i ? color(chart.series[i - 1].tone) : null;
      } } },
      hooks: hooks,
    }, [chart.x].concat(chart.series.map(function (s) { return s.values; })), box);
  }

  function mount(box) {
    var source = document.querySelector('script[data-for="' + box.id + '"]');
    var chart = JSON.parse(source.textContent);
    var plot = null;
    function redraw(width) {
      if (plot) plot.destroy();
      box.querySelectorAll(".told").forEach(function (old) { old.remove(); });
      plot = draw(box, chart, width);
    }
    function fit() {
      var width = Math.floor(box.clientWidth);
      if (width > 0 && (!plot || plot.width !== width)) redraw(width);
    }
    fit();
    // In the next frame: a chart that is drawn while sizes are told would change them again.
    new ResizeObserver(function () { requestAnimationFrame(fit); }).observe(box);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", function () {
      redraw(Math.floor(box.clientWidth));
    });
    // Paper is white and narrow whatever the screen is.
    addEventListener("beforeprint", function () { redraw(PRINT_WIDTH); });
    addEventListener("afterprint", function () { redraw(Math.floor(box.clientWidth)); });
  }

  document.querySelectorAll(".chart").forEach(mount);
  window.drawChart = mount;  // for charts that come later (brimful.web)
})();
