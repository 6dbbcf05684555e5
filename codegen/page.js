/* Timelines of the page: one canvas per system, one time axis for all. Wheel zooms, dragging moves, a double click shows
   everything again. */
(function () {
  "use strict";
  const source = document.getElementById("timelines");
  if (!source) {
    return;
  }
  const data = JSON.parse(source.textContent);
  const holder = document.getElementById("lanes");
  const choice = document.getElementById("where");
  const tip = document.getElementById("tip");
  let LEFT = 46;
  const ROW = 14, THIN = 5, GAP = 8, AXIS = 24, FIELDS = 5;
  let shown = [];
  let view = { begin: 0, end: 1 };
  let whole = 1;

  /* [gap, length, class, layer, micro-batch or count] from the lane's begin, in units -> ns */
  function decode(row) {
    if (row.decoded) {
      return;
    }
    row.decoded = row.lanes.map(function (flat) {
      const n = flat.length / FIELDS;
      const lane = { begin: new Float64Array(n), end: new Float64Array(n), flat: flat, n: n };
      let at = 0;
      for (let i = 0; i < n; i++) {
        at += flat[i * FIELDS] * row.unit;
        lane.begin[i] = at;
        lane.end[i] = at + flat[i * FIELDS + 1] * row.unit;
      }
      return lane;
    });
  }

  function time(ns) {
    const abs = Math.abs(ns);
    if (abs < 1e3) {
      return ns.toFixed(0) + " ns";
    }
    if (abs < 1e6) {
      return Number((ns / 1e3).toPrecision(5)) + " us";
    }
    if (abs < 1e9) {
      return Number((ns / 1e6).toPrecision(5)) + " ms";
    }
    return Number((ns / 1e9).toPrecision(5)) + " s";
  }

  function css(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  }

  function laneTop(index) {
    const group = Math.floor(index / 3), lane = index % 3;
    return AXIS + group * (ROW + 2 * THIN + 2 + GAP) + (lane === 0 ? 0 : ROW + 1 + (lane - 1) * (THIN + 1));
  }

  function laneHeight(index) {
    return index % 3 === 0 ? ROW : THIN;
  }

  /* First rectangle that ends after t. */
  function firstAfter(lane, t) {
    let low = 0, high = lane.n;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (lane.end[middle] <= t) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  }

  function drawAxis(ctx, width, height) {
    const span = view.end - view.begin;
    const rough = span / Math.max(2, (width - LEFT) / 110);
    const power = Math.pow(10, Math.floor(Math.log10(rough)));
    const tick = power * (rough / power > 5 ? 10 : rough / power > 2 ? 5 : rough / power > 1 ? 2 : 1);
    ctx.font = "11px system-ui, sans-serif";
    ctx.textAlign = "left";
    for (let t = Math.ceil(view.begin / tick) * tick; t <= view.end; t += tick) {
      const x = LEFT + ((t - view.begin) / span) * (width - LEFT);
      ctx.fillStyle = css("--line");
      ctx.fillRect(x, AXIS - 6, 1, height);
      ctx.fillStyle = css("--soft");
      if (x + 4 + ctx.measureText(time(t)).width < width) {
        ctx.fillText(time(t), x + 4, 14);
      }
    }
  }

  function draw(item) {
    const canvas = item.canvas, ratio = window.devicePixelRatio || 1;
    const width = canvas.clientWidth, height = item.height;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    const ctx = canvas.getContext("2d");
    ctx.scale(ratio, ratio);
    drawAxis(ctx, width, height);
    const scale = (width - LEFT) / (view.end - view.begin);
    item.row.decoded.forEach(function (lane, index) {
      const top = laneTop(index), tall = laneHeight(index);
      if (index % 3 === 0) {
        ctx.fillStyle = css("--soft");
        ctx.font = "11px system-ui, sans-serif";
        ctx.fillText(item.row.groups[index / 3], 8, top + ROW - 2);
      }
      ctx.save();
      ctx.beginPath();
      ctx.rect(LEFT, top, width - LEFT, tall);
      ctx.clip();
      for (let i = firstAfter(lane, view.begin); i < lane.n && lane.begin[i] < view.end; i++) {
        ctx.fillStyle = data.classes[lane.flat[i * FIELDS + 2]][1];
        const x = LEFT + (lane.begin[i] - view.begin) * scale;
        const w = (lane.end[i] - lane.begin[i]) * scale;
        ctx.fillRect(x, top, w > 3 ? w - 0.5 : Math.max(w, 0.4), tall);
      }
      ctx.restore();
    });
  }

  function drawAll() {
    shown.forEach(draw);
  }

  let pending = false;
  function redraw() {
    if (!pending) {
      pending = true;
      requestAnimationFrame(function () {
        pending = false;
        drawAll();
      });
    }
  }

  function setView(begin, end) {
    const least = whole / 1e5;
    const span = Math.min(Math.max(end - begin, least), whole);
    begin = Math.min(Math.max(begin, 0), whole - span);
    view = { begin: begin, end: begin + span };
    redraw();
  }

  function zoom(factor, at) {
    const t = view.begin + at * (view.end - view.begin);
    setView(t - (t - view.begin) * factor, t + (view.end - t) * factor);
  }

  function describe(row, lane, index, i) {
    const kind = data.classes[lane.flat[i * FIELDS + 2]][0];
    const layer = lane.flat[i * FIELDS + 3], last = lane.flat[i * FIELDS + 4];
    const what = layer < 0 && last > 1 ? last + " ops, mostly " + kind
      : last < 0 || kind === "optimizer" ? kind
        : kind + ", layer " + layer + ", micro-batch " + last;
    const where = [" computes", " sends", " receives"][index % 3];
    return row.groups[Math.floor(index / 3)] + where + ": " + what + "; " + time(lane.end[i] - lane.begin[i]) + " at " +
      time(lane.begin[i]);
  }

  function hover(item, event) {
    const box = item.canvas.getBoundingClientRect();
    const x = event.clientX - box.left, y = event.clientY - box.top;
    const scale = (box.width - LEFT) / (view.end - view.begin);
    const slack = 1 / scale;
    const t = view.begin + (x - LEFT) / scale;
    let text = "";
    item.row.decoded.forEach(function (lane, index) {
      if (x >= LEFT && y >= laneTop(index) && y < laneTop(index) + laneHeight(index) + 1) {
        const i = firstAfter(lane, t - slack);
        if (i < lane.n && lane.begin[i] <= t + slack) {
          text = describe(item.row, lane, index, i);
        }
      }
    });
    tip.textContent = text;
    tip.style.visibility = text ? "visible" : "hidden";
    tip.style.left = Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 8) + "px";
    tip.style.top = event.clientY + 16 + "px";
  }

  function listen(item) {
    let from = null;
    item.canvas.addEventListener("wheel", function (event) {
      if (event.ctrlKey || event.shiftKey || Math.abs(event.deltaY) < 1) {
        return;
      }
      event.preventDefault();
      const box = item.canvas.getBoundingClientRect();
      const at = Math.min(Math.max((event.clientX - box.left - LEFT) / (box.width - LEFT), 0), 1);
      zoom(event.deltaY > 0 ? 1.25 : 0.8, at);
    }, { passive: false });
    item.canvas.addEventListener("pointerdown", function (event) {
      from = { x: event.clientX, begin: view.begin, end: view.end };
      item.canvas.setPointerCapture(event.pointerId);
    });
    item.canvas.addEventListener("pointermove", function (event) {
      if (from) {
        const width = item.canvas.clientWidth - LEFT;
        const by = ((from.x - event.clientX) / width) * (from.end - from.begin);
        setView(from.begin + by, from.end + by);
        tip.style.visibility = "hidden";
      } else {
        hover(item, event);
      }
    });
    item.canvas.addEventListener("pointerup", function () {
      from = null;
    });
    item.canvas.addEventListener("pointerleave", function () {
      tip.style.visibility = "hidden";
    });
    item.canvas.addEventListener("dblclick", function () {
      setView(0, whole);
    });
  }

  function show(where) {
    holder.textContent = "";
    shown = [];
    whole = 1;
    data.rows.forEach(function (row) {
      if (String(row.where) !== where) {
        return;
      }
      decode(row);
      LEFT = Math.max.apply(null, [46].concat(row.groups.map(function (name) { return 14 + 6.2 * name.length; })));
      whole = Math.max(whole, row.step);
      const box = document.createElement("div"), title = document.createElement("h3");
      const more = document.createElement("span"), canvas = document.createElement("canvas");
      box.className = "lane";
      title.textContent = row.title + " ";
      more.textContent = time(row.step) + (row.joined > 0 ? "; ops closer than " + time(row.joined) + " drawn as one" : "");
      title.appendChild(more);
      box.appendChild(title);
      box.appendChild(canvas);
      holder.appendChild(box);
      const height = AXIS + row.groups.length * (ROW + 2 * THIN + 2 + GAP);
      canvas.style.height = height + "px";
      const item = { row: row, canvas: canvas, height: height };
      shown.push(item);
      listen(item);
    });
    setView(0, whole);
    drawAll();
  }

  document.getElementById("in").addEventListener("click", function () { zoom(0.5, 0.5); });
  document.getElementById("out").addEventListener("click", function () { zoom(2, 0.5); });
  document.getElementById("first").addEventListener("click", function () { setView(0, whole / 20); });
  document.getElementById("last").addEventListener("click", function () { setView(whole * 0.95, whole); });
  document.getElementById("all").addEventListener("click", function () { setView(0, whole); });
  choice.addEventListener("change", function () { show(choice.value); });
  window.addEventListener("resize", redraw);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  show(choice.value);
})();
