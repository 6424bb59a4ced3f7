/* The timeline that a person zooms into. Text from profiles reaches the page as textContent and canvas text alone.
   Times are ns: offsets from `origin` (the start of the recording, a decimal text), exact in a double for 100 days. */
const RULER = 20, ROW = 15, CLOSED = 9, LINE = 38, REST = 100, LETTER = 5.8, LEAST = 10;
const TICK = 3;  // px that a busy share has at least: one short kernel in a long recording is seen
const UNITS = [["s", 1e9, 9], ["ms", 1e6, 6], ["µs", 1e3, 3], ["ns", 1, 0]];
const HELP = "wheel or w/s: zoom · shift+wheel, arrows or a/d: move · drag: zoom to it · shift+drag: move · click: " +
    "what is known · f: fit it · shift+click: measure · m: mark · u: back · n/p: next, previous match · double-click: all";
const STYLE = `
.perfkit-timeline { position: relative; outline: none; width: 100%; min-width: 0; color: var(--jp-ui-font-color1, inherit);
    font: 12px system-ui, sans-serif; }
.perfkit-timeline:focus { box-shadow: 0 0 0 1px #1f77d4; }
.perfkit-timeline canvas { display: block; width: 100%; touch-action: pan-y; cursor: crosshair; }
.perfkit-timeline button, .perfkit-timeline input { font: inherit; color: inherit; background: transparent;
    border: 1px solid #808080; border-radius: 3px; padding: 1px 7px; margin: 2px 3px 2px 0; }
.perfkit-timeline input { width: 260px; }
.perfkit-timeline-title { font-weight: 600; font-size: 14px; }
.perfkit-timeline-tip { position: absolute; display: none; z-index: 9; pointer-events: none; max-width: 420px;
    padding: 4px 7px; border: 1px solid #808080; white-space: pre-line; overflow-wrap: anywhere;
    background: var(--jp-layout-color1, Canvas); }
.perfkit-explorer .vega-embed { width: 100%; }
.perfkit-timeline-key { display: inline-block; width: 10px; height: 10px; margin: 0 4px 0 10px; }`;

const table = part => {
    const {columns, data} = part, bytes = data.buffer.slice(data.byteOffset, data.byteOffset + data.byteLength);
    const all = new Float64Array(bytes), count = all.length / columns.length;
    const named = Object.fromEntries(columns.map((name, i) => [name, all.subarray(i * count, (i + 1) * count)]));
    return {...named, count};
};

const lasting = ns => {
    const [symbol, size] = UNITS.find(([, size]) => Math.abs(ns) >= size) ?? UNITS[3];
    return `${Number((ns / size).toPrecision(4))} ${symbol}`;
};

function render({model, el}) {
    const made = (tag, parent, text = "", more = {}) =>
        parent.appendChild(Object.assign(document.createElement(tag), {textContent: text}, more));
    const root = made("div", el, "", {className: "perfkit-timeline", tabIndex: 0});
    root.dataset.lmSuppressShortcuts = "true";
    made("style", root, STYLE);
    const title = made("div", root, "", {className: "perfkit-timeline-title"}), bar = made("div", root);
    const keys = made("div", root), canvas = made("canvas", root);
    const above = canvas.getContext("2d"), sheet = document.createElement("canvas"), below = sheet.getContext("2d");
    let ink = above, isStale = true;  // the bars lie on `sheet`: a pointer that moves over them draws none anew
    const tip = made("div", root, "", {className: "perfkit-timeline-tip"});
    const said = made("div", root, "", {className: "perfkit-timeline-said"}), notes = made("div", root);
    said.setAttribute("role", "status");
    canvas.setAttribute("role", "img");
    let GUTTER = 200, drawn = null, whole = null, view = [0, 1], committed = null, waiting = 0, asks = 0, frame = 0, typed = 0;
    let rows = [], pointer = null, drag = null, picked = null, other = null, marks = [], isArmed = false, bars = [], asked = "", seenWidth = 0;
    const past = [], deepest = {};

    const press = (name, about, act) => made("button", bar, name, {title: about, onclick: act});
    press("+", "Zoom in (w)", () => zoom(0.5));
    press("−", "Zoom out (s)", () => zoom(2));
    press("←", "Move left (a)", () => move(-0.5));
    press("→", "Move right (d)", () => move(0.5));
    press("fit", "Fit the clicked operation (f)", () => fit());
    press("mark", "Mark the place under the pointer, or the clicked operation (m)", () => mark());
    press("back", "Undo the last change of the view (u)", () => undo());
    press("whole", "The whole recording (double-click)", () => look(0, drawn.whole));
    const search = made("input", bar, "", {placeholder: "search: name, a.*b, > 1 ms, in RANGE", type: "search"});
    search.setAttribute("aria-label", "search");
    press("◀", "Previous match (p)", () => find(-1));
    press("▶", "Next match (n)", () => find(1));
    press("filter", "Show only kernels that match", () => model.send({kind: "filter", text: search.value}));
    const hidden = press("", "Show hidden lanes again, open and unpin all", () => arrange({}));
    const found = made("span", bar, "");
    const about = made("details", bar, "");
    about.style.display = "inline-block";
    made("summary", about, "keys");
    made("span", about, HELP);

    let extent = 0;  // px, the canvas's width: asking the page for it costs more than drawing a bar
    const across = () => Math.max(extent - GUTTER - 2, 50);
    const x = time => GUTTER + (time - view[0]) / (view[1] - view[0]) * across();
    const time = at => view[0] + (at - GUTTER) / across() * (view[1] - view[0]);
    const point = () => { frame ||= requestAnimationFrame(() => { frame = 0; draw(); }); };
    const paint = () => { isStale = true; point(); };
    const arranged = () => ({hidden: [], closed: [], pinned: [], opened: [], ...model.get("arranged")});
    const arrange = value => { model.set("arranged", value); model.save_changes(); place(); };
    const commit = (next, isQuiet = false) => { if (committed && !isQuiet) past.push(committed); committed = next; };
    const find = step => model.send({kind: "find", step, at: Math.round((view[0] + view[1]) / 2)});

    function look(first, last, {isQuiet = false, rest = REST} = {}) {
        const length = Math.min(Math.max(last - first, LEAST), drawn.whole);
        first = Math.min(Math.max(first, 0), drawn.whole - length);
        view = [first, first + length];
        paint();
        clearTimeout(waiting);
        waiting = setTimeout(() => {
            waiting = 0;
            view = view.map(Math.round);
            commit(view, isQuiet);
            asks = Math.max(asks, drawn.answers) + 1;
            model.send({kind: "look", first: view[0], last: view[1], number: asks});
        }, rest);
    }
    const zoom = (by, at = pointer && pointer.x > GUTTER ? time(pointer.x) : (view[0] + view[1]) / 2) =>
        look(at - (at - view[0]) * by, at - (at - view[0]) * by + (view[1] - view[0]) * by);
    const move = part => look(view[0] + part * (view[1] - view[0]), view[1] + part * (view[1] - view[0]));
    const undo = () => { if (past.length) look(...past.pop(), {isQuiet: true}); };
    const fit = () => { if (picked) look(picked.start - 0.25 * picked.took, picked.start + 1.25 * picked.took); };
    const mark = () => {
        marks.push(pointer && pointer.x > GUTTER ? time(pointer.x) : picked ? picked.start : (view[0] + view[1]) / 2);
        marks = marks.slice(-9);
        if (marks.length > 1) say(`mark ${marks.length - 1} to ${marks.length}: ${lasting(marks.at(-1) - marks.at(-2))}`);
        paint();
    };
    const say = text => { said.textContent = text; };
    const stamp = (at, [symbol, size, digits] = UNITS[0]) => {
        const ns = BigInt(drawn.origin) + BigInt(Math.round(at)), unit = BigInt(size), sign = ns < 0n ? "-" : "";
        const all = ns < 0n ? -ns : ns, rest = (all % unit).toString().padStart(digits, "0").replace(/0+$/, "");
        return `${sign}${(all / unit).toLocaleString("en")}${digits && rest ? `.${rest}` : ""} ${symbol}`;
    };

    function place() {
        extent = canvas.clientWidth;
        const {hidden: gone, closed, pinned, opened} = arranged(), streams = drawn.lanes.filter(one => one.type === "gpu").length;
        const tall = Math.min(Math.max(300 / Math.max(streams, 1), 17), 44);
        const height = one => closed.includes(one.label) ? CLOSED : one.type === "line" ? LINE :
            one.type === "gpu" ? tall : (deepest[one.label] = Math.max(deepest[one.label] ?? 1, one.levels)) * ROW + 3;
        const shown = drawn.lanes.map((one, lane) => ({...one, lane})).filter(one => !gone.includes(one.label));
        const first = one => pinned.includes(one.label) ? pinned.indexOf(one.label) : pinned.length + one.lane;
        ink.font = "11px system-ui, sans-serif";
        const widest = Math.max(...shown.map(one => ink.measureText(one.label).width), 60);
        GUTTER = Math.round(Math.min(widest + 34, 250, Math.max(extent * 0.3, 120)));
        let top = RULER;
        rows = shown.sort((a, b) => first(a) - first(b)).map(one => {
            const row = {...one, top, high: height(one), isClosed: closed.includes(one.label)};
            row.isShut = one.isGroup ? !opened.includes(one.label) : row.isClosed;
            top += row.high + 2;
            return row;
        });
        hidden.textContent = gone.length ? `show ${gone.length} hidden` : "all lanes as they were";
        hidden.style.display = gone.length + closed.length + pinned.length + opened.length ? "" : "none";
        canvas.style.height = `${top + 4}px`;
        paint();
    }

    function draw() {
        const high = canvas.clientHeight, sharp = devicePixelRatio || 1, dark = getComputedStyle(root).color;
        extent = canvas.clientWidth;
        if (!drawn || !extent) return;
        for (const [side, px] of Object.entries({width: Math.round(extent * sharp), height: Math.round(high * sharp)}))
            if (canvas[side] !== px) [canvas[side], sheet[side], isStale] = [px, px, true];
        if (isStale) spread(dark, high, sharp);
        fresh(high, sharp);
        ink.setTransform(1, 0, 0, 1, 0, 0);
        ink.drawImage(sheet, 0, 0);
        ink.setTransform(sharp, 0, 0, sharp, 0, 0);
        within(GUTTER, across(), high, () => over(dark, high));
        for (const row of rows) {
            ink.fillStyle = dark;
            const mine = pointer && pointer.x < GUTTER && pointer.y >= row.top && pointer.y < row.top + row.high;
            ink.textAlign = "right";
            if (!row.isClosed) ink.fillText(row.label, GUTTER - 8, row.top + row.high / 2, mine ? GUTTER - 70 : GUTTER - 24);
            ink.textAlign = "left";
            ink.fillText(row.type === "flame" || row.isGroup || mine ? row.isShut ? "▸" : "▾" : "", 2, row.top + row.high / 2);
            if (mine) ink.fillText("⤒  ✕", 18, row.top + row.high / 2);
        }
        root.dataset.drawn = `${Number(root.dataset.drawn ?? 0) + 1}`;
    }

    function fresh(high, sharp) {
        ink.setTransform(sharp, 0, 0, sharp, 0, 0);
        ink.clearRect(0, 0, extent, high);
        ink.font = "11px system-ui, sans-serif";
        ink.textBaseline = "middle";
    }

    function within(left, wide, high, act) {
        const path = new Path2D();
        path.rect(left, 0, Math.max(wide, 0), high);
        ink.save();
        ink.clip(path);
        act();
        ink.restore();
    }

    function spread(dark, high, sharp) {
        ink = below;
        fresh(high, sharp);
        for (const row of rows) {
            ink.fillStyle = "rgba(128,128,128,0.12)";
            ink.fillRect(GUTTER, row.top, across(), row.high);
        }
        ruler(dark, high);
        bars = [];
        // Outside of what is loaded, the coarser picture of the whole recording stands in until finer data comes.
        const gaps = whole && whole !== drawn && whole.key === drawn.key ?
            [[view[0], drawn.window[0]], [drawn.window[1], view[1]]].filter(([from, to]) => from < to) : [];
        for (const [from, to] of gaps) within(x(from), x(to) - x(from), high, () => pictured(whole, from, to));
        within(GUTTER, across(), high, () => pictured(drawn, ...view));
        ink = above;
        isStale = false;
    }

    function ruler(dark, high) {
        const length = view[1] - view[0], unit = UNITS.find(([, size]) => length >= size) ?? UNITS[3];
        const least = length / Math.max(across() / 85, 2), ten = 10 ** Math.floor(Math.log10(least));
        const step = Math.max([1, 2, 5, 10].find(one => one * ten >= least) * ten, 1), origin = BigInt(drawn.origin);
        const wide = BigInt(Math.round(step)), from = (origin + BigInt(Math.ceil(view[0]))) / wide * wide;
        ink.textAlign = "left";
        for (let at = from; Number(at - origin) <= view[1]; at += wide) {
            const left = x(Number(at - origin));
            if (left < GUTTER) continue;
            ink.fillStyle = "rgba(128,128,128,0.35)";
            ink.fillRect(left, 0, 1, high);
            ink.fillStyle = dark;
            const text = stamp(Number(at - origin), unit), room = GUTTER + across() - left - 3;
            if (ink.measureText(text).width <= room) ink.fillText(text, left + 3, RULER / 2);
        }
    }

    function pictured(of, from, to) {
        const first = x(from), last = x(to);
        const place = Object.fromEntries(rows.map(row => [row.lane, row])), {bins, spans, lines} = of;
        const begin = of.window[0], hits = model.get("found") ?? {}, hit = of === drawn && hits.hit ? new Set(hits.hit) : null;
        for (let i = bins.count - 1; i >= 0; i--) {  // computation last: of two ticks in one place it is the one seen
            const row = place[bins.lane[i]], left = x(begin + bins.s[i]), right = x(begin + bins.s[i] + bins.d[i]);
            if (!row || right < first || left > last) continue;
            ink.fillStyle = shade(of, of.names[bins.k[i]]);
            const high = Math.max((bins.low[i] - bins.high[i]) / 1000 * row.high, TICK);
            ink.fillRect(left, row.top + bins.low[i] / 1000 * row.high - high, Math.max(right - left, 1), high);
        }
        for (let i = 0; i < spans.count; i++) {
            const row = place[spans.lane[i]], start = begin + spans.s[i], left = Math.max(x(start), GUTTER - 2);
            const right = Math.min(x(start + spans.d[i]), GUTTER + across() + 2), width = Math.max(right - left, 1);
            if (!row || right < GUTTER || left > GUTTER + across()) continue;
            const isFlame = row.type === "flame" && !row.isClosed, deep = row.isClosed && row.type === "flame";
            const part = (row.high - 4) / (row.isGroup ? row.levels : 1);
            const top = row.top + (isFlame ? 1 + spans.level[i] * ROW : 2 + (row.isGroup ? spans.level[i] * part : 0));
            const high = isFlame ? ROW - 1 : part;
            if (deep && spans.level[i]) continue;
            const isHit = hit && hit.has(i);
            const isOwned = !picked?.owned || picked.owned.has(spans.id[i]) || row.type !== "gpu";
            ink.globalAlpha = (hit && !isHit) || !isOwned ? 0.25 : 1;
            const colour = of.colours[of.names[spans.k[i]]];
            ink.fillStyle = shade(of, of.names[spans.k[i]]);
            ink.fillRect(left, top, width > 3 ? width - 0.6 : width, high);
            const isPicked = picked && picked.id === spans.id[i] && picked.label === row.label;
            if (isPicked || isHit) {
                ink.strokeStyle = isPicked ? "#E0A010" : getComputedStyle(root).color;
                ink.lineWidth = isPicked ? 2.5 : 1.2;
                ink.strokeRect(left, top, width, high);
            }
            const letters = Math.floor((width - 4) / LETTER), text = of.names[spans.n[i]] ?? "";
            if (letters >= 3 && high >= 11) {
                ink.fillStyle = bright(colour) ? "#000" : "#fff";
                ink.textAlign = "left";
                ink.font = "10px system-ui, sans-serif";
                ink.fillText(text.length > letters ? `${text.slice(0, letters - 1)}…` : text, left + 3, top + high / 2, width - 4);
            }
            ink.globalAlpha = 1;
            if (of === drawn) bars.push({i, row, x: left, y: top, width, height: high});
        }
        for (const line of lines) {
            const row = place[line.lane];
            if (!row || row.isClosed) continue;
            const {s, low, mean, high, count} = line.points, top = line.top || 1;
            const y = value => row.top + row.high - 3 - value / top * (row.high - 7);
            ink.strokeStyle = ink.fillStyle = "#20A0B0";
            ink.lineWidth = 1.3;
            ink.globalAlpha = 0.3;
            for (let i = 0; i < count; i++) ink.fillRect(x(begin + s[i]) - 1, y(high[i]), 2, y(low[i]) - y(high[i]) + 0.5);
            ink.globalAlpha = 1;
            ink.beginPath();
            for (let i = 0; i < count; i++) ink.lineTo(x(begin + s[i]), y(mean[i]));
            ink.stroke();
        }
    }

    // Lines aslant stand for time of which nobody knows what the program did.
    const hatches = {};
    const shade = (of, name) => of.hatched.includes(name) ? hatches[name] ??= hatch(of.colours[name]) : of.colours[name];
    function hatch(colour) {
        const tile = Object.assign(document.createElement("canvas"), {width: 8, height: 8}), pen = tile.getContext("2d");
        pen.strokeStyle = colour;
        pen.lineWidth = 2;
        for (const at of [-8, 0, 8]) { pen.moveTo(at, 8); pen.lineTo(at + 8, 0); }
        pen.stroke();
        return pen.createPattern(tile, "repeat");
    }

    const shades = {};
    const bright = colour => shades[colour] ??= (() => {
        const [r, g, b] = [1, 3, 5].map(i => (parseInt(colour.slice(i, i + 2), 16) / 255) ** 2.2);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.18;
    })();

    function over(dark, high) {
        const {ticks} = model.get("found") ?? {};
        ink.fillStyle = "#E0A010";
        for (const at of ticks ?? []) ink.fillRect(x(at) - 0.5, RULER - 4, 1.5, 4);
        ink.font = "11px system-ui, sans-serif";
        marks.forEach((at, number) => {
            ink.fillRect(x(at), 0, 1.5, high);
            ink.fillText(`${number + 1}`, x(at) + 3, high - 6);
        });
        const arrow = picked?.arrow, row = rows.find(one => one.label === picked?.label);
        if (arrow && row) {
            const to = rows.find(one => one.label === arrow.lane), y = row.top + row.high / 2;
            const above = to ? to.top + to.high / 2 : y;
            ink.strokeStyle = "#E0A010";
            ink.lineWidth = 2;
            ink.beginPath();
            ink.moveTo(x(arrow.start + arrow.took), above);
            ink.lineTo(x(picked.start), y);
            ink.stroke();
            const left = Math.max(x(arrow.start + arrow.took) + 5, GUTTER + 4), middle = (above + y) / 2 - 4;
            ink.fillStyle = "rgba(255,255,255,0.85)";
            ink.fillRect(left - 2, middle - 7, ink.measureText(arrow.text).width + 4, 14);
            ink.fillStyle = "#000";
            ink.fillText(arrow.text, left, middle);
        }
        const band = other ? [Math.min(picked.start, other.start), Math.max(picked.start, other.start)] :
            drag?.kind === "select" ? [drag.from, time(pointer.x)].sort((a, b) => a - b) : null;
        if (picked?.took && picked.id === null) {
            ink.fillStyle = "rgba(224,160,16,0.3)";
            ink.fillRect(x(picked.start), 0, Math.max(x(picked.start + picked.took) - x(picked.start), 2), high);
        }
        if (!band) return;
        ink.fillStyle = "rgba(128,128,128,0.25)";
        ink.fillRect(x(band[0]), 0, x(band[1]) - x(band[0]), high);
        ink.fillStyle = dark;
        ink.fillText(lasting(band[1] - band[0]), Math.max(x(band[0]) + 3, GUTTER + 3), high - 8);
    }

    const under = ({x: left, y: top}) => bars.findLast(one => left >= one.x - 1 && left <= one.x + one.width + 1 &&
        top >= one.y && top < one.y + one.height);
    const told = ({i, row}) => {
        const {spans, names, window} = drawn, start = window[0] + spans.s[i], missing = value => Number.isNaN(value);
        const lines = [["name", names[spans.n[i]] ?? "not recorded"], ["lane", row.label], ["kind", names[spans.k[i]]],
            ["starts at", stamp(start)], ["duration", lasting(spans.d[i])]];
        if (row.type !== "gpu") return lines;
        const called = missing(spans.t[i]) ? [["launched by", "not recorded"]] : [["launched by", names[spans.a[i]]],
            ["call lasts", lasting(spans.u[i])], ["from call to start", lasting(spans.s[i] - spans.t[i])]];
        return [...lines, ["correlation", spans.c[i] < 0 ? "none" : spans.c[i]], ...called];
    };
    // For programs that read the page, as screen readers and tests: what is drawn one by one, and where.
    root.perfkitBars = () => bars.map(one => {
        const box = canvas.getBoundingClientRect();
        const words = told(one).map(([name, value]) => `${name}: ${value}`).join("; ");
        return {said: words, x: box.x + one.x, y: box.y + one.y, width: one.width, height: one.height, type: one.row.type};
    });
    root.perfkitView = () => ({view, waiting: Boolean(waiting), left: GUTTER, wide: across(), arranged: arranged(), marks, picked,
        rows: rows.map(({label, top, high, isShut}) => ({label, top, high, isShut}))});

    function hover() {
        const bar = pointer && !drag && pointer.x > GUTTER ? under(pointer) : null;
        tip.style.display = bar ? "block" : "none";
        if (!bar) return;
        tip.textContent = told(bar).map(([name, value]) => `${name}: ${value}`).join("\n");
        const left = Math.min(pointer.x + 14, Math.max(canvas.clientWidth - tip.offsetWidth - 6, 0));
        Object.assign(tip.style, {left: `${left}px`, top: `${canvas.offsetTop + pointer.y + 16}px`});
    }

    function clicked(event) {
        if (pointer.x < GUTTER) {
            const row = rows.find(one => pointer.y >= one.top && pointer.y < one.top + one.high + 2);
            if (!row) return;
            const now = arranged(), shut = row.isGroup ? "opened" : "closed";
            const part = pointer.x < 16 || pointer.x > 56 ? shut : pointer.x < 36 ? "pinned" : "hidden";
            const has = now[part].includes(row.label);
            arrange({...now, [part]: has ? now[part].filter(one => one !== row.label) : [...now[part], row.label]});
            return;
        }
        const bar = under(pointer), spans = drawn.spans;
        const one = bar ? {id: spans.id[bar.i], label: bar.row.label, start: drawn.window[0] + spans.s[bar.i],
            took: spans.d[bar.i], name: drawn.names[spans.n[bar.i]] ?? ""} : {start: time(pointer.x), took: 0, name: "point"};
        if (event.shiftKey && picked) {
            other = one;
            const [first, last] = [picked, one].sort((a, b) => a.start - b.start);
            const between = last.start - first.start - first.took;
            say(`${first.name} to ${last.name}: start to start ${lasting(last.start - first.start)}, ` +
                `end to start ${lasting(between)}${between < 0 ? " (they overlap)" : ""}`);
        } else {
            picked = bar || !picked?.id ? one : null;
            other = null;
            say("");
            if (bar && !Number.isNaN(one.id)) model.send({kind: "click", id: one.id, lane: bar.row.label});
        }
        paint();
    }

    const at = event => {
        const box = canvas.getBoundingClientRect();
        return {x: event.clientX - box.x, y: event.clientY - box.y};
    };
    canvas.addEventListener("pointerdown", event => {
        root.focus({preventScroll: true});
        pointer = at(event);
        drag = {kind: event.shiftKey || event.button === 1 ? "move" : "select", x: pointer.x, from: time(pointer.x), view};
        canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", event => {
        pointer = at(event);
        if (event.movementX || event.movementY) isArmed = true;
        if (drag?.kind === "move" && Math.abs(pointer.x - drag.x) > 3) {
            const by = (drag.x - pointer.x) / across() * (drag.view[1] - drag.view[0]);
            look(drag.view[0] + by, drag.view[1] + by);
        }
        hover();
        point();
    });
    canvas.addEventListener("pointerup", event => {
        const was = drag, first = was?.from;
        pointer = at(event);
        drag = null;
        if (!was) return;
        if (Math.abs(pointer.x - was.x) <= 3) clicked(event);
        else if (was.kind === "move") look(...view, {rest: 0});
        else if (was.x > GUTTER) look(...[first, time(pointer.x)].sort((a, b) => a - b), {rest: 0});
        paint();
    });
    canvas.addEventListener("pointerleave", () => { isArmed = false; if (!drag) pointer = null; hover(); point(); });
    canvas.addEventListener("dblclick", event => { if (at(event).x > GUTTER) look(0, drawn.whole); });
    // A page that scrolls under a resting pointer goes on scrolling; a pointer that moved here means the timeline.
    canvas.addEventListener("wheel", event => {
        if (!event.ctrlKey && !isArmed && document.activeElement !== root) return;
        event.preventDefault();
        event.stopPropagation();
        pointer = at(event);
        const scale = event.deltaMode ? 30 : 1, sideways = event.shiftKey ? event.deltaY || event.deltaX : event.deltaX;
        if (Math.abs(sideways) > Math.abs(event.shiftKey ? 0 : event.deltaY)) move(sideways * scale / across());
        else zoom(Math.exp(Math.max(-1, Math.min(1, event.deltaY * scale * (event.ctrlKey ? 0.01 : 0.003)))));
    }, {passive: false});

    const acts = {
        w: () => zoom(0.6), s: () => zoom(1 / 0.6), "+": () => zoom(0.6), "-": () => zoom(1 / 0.6), a: () => move(-0.25),
        d: () => move(0.25), arrowleft: () => move(-0.25), arrowright: () => move(0.25), arrowup: () => zoom(0.6),
        arrowdown: () => zoom(1 / 0.6), f: fit, m: mark, u: undo, n: () => find(1), p: () => find(-1),
        home: () => look(0, drawn.whole), "/": () => search.focus(),
        escape: () => { picked = other = null; marks = []; say(""); paint(); },
    };
    root.addEventListener("keydown", event => {
        event.stopPropagation();
        if (event.target === search) {
            if (event.key === "Enter") { event.preventDefault(); ask(event.shiftKey ? -1 : 1); }
            if (event.key === "Escape") root.focus();
            return;
        }
        if (event.ctrlKey || event.metaKey || event.altKey || event.target !== root) return;
        const act = acts[event.key.toLowerCase()];
        if (act && drawn) { event.preventDefault(); act(); }
    });
    for (const kind of ["keyup", "keypress", "mousedown", "contextmenu"])
        root.addEventListener(kind, event => event.stopPropagation());
    const ask = step => {
        clearTimeout(typed);
        if (asked !== search.value) model.send({kind: "search", text: asked = search.value});
        if (step && search.value) find(step);
    };
    search.addEventListener("input", () => { clearTimeout(typed); typed = setTimeout(ask, 500); });

    function load() {
        const spec = model.get("drawing");
        if (!spec?.lanes) return;
        const lanes = spec.lanes.map(one => ({...one, isGroup: one.type === "group", type: one.type === "group" ? "gpu" : one.type}));
        drawn = {...spec, lanes, bins: table(spec.bins), spans: table(spec.spans), key: spec.lanes.map(one => one.label).join("\n"),
            lines: spec.lines.map(one => ({...one, points: table(one.points)}))};
        const isWhole = drawn.window[1] - drawn.window[0] >= drawn.whole;
        if (isWhole || whole?.origin !== drawn.origin || whole?.key !== drawn.key) whole = isWhole ? drawn : null;
        const isLast = drawn.answers >= asks;  // else the answer to a later look follows, and the view stays there
        if (isLast && String(committed) !== String(drawn.window)) commit(drawn.window);
        if (isLast && !waiting && !drag) view = drawn.window;
        title.textContent = drawn.title;
        canvas.setAttribute("aria-label", drawn.spoken);
        notes.replaceChildren();
        for (const line of drawn.explanation) made("div", notes, line);
        keys.replaceChildren();
        for (const [name, colour] of Object.entries(drawn.colours)) {
            const key = made("span", keys);
            key.style.display = "inline-block";
            const isHatched = drawn.hatched.includes(name);
            const aslant = `repeating-linear-gradient(135deg, ${colour} 0 2px, transparent 2px 5px)`;
            made("span", key, "", {className: "perfkit-timeline-key"}).style.background = isHatched ? aslant : colour;
            made("span", key, name);
        }
        place();
    }
    const answered = () => {
        const {said: text, text: now} = model.get("found") ?? {};
        found.textContent = text ?? "";
        if (now !== undefined && document.activeElement !== search) search.value = asked = now;
        paint();
    };
    const known = () => {
        const one = model.get("chosen") ?? {};
        if (one.start === undefined) return;
        picked = {...one, owned: one.owned ? new Set(one.owned) : null};
        other = null;
        paint();
    };
    model.on("change:drawing", load);
    model.on("change:found", answered);
    model.on("change:chosen", known);
    model.on("change:arranged", () => { if (drawn) place(); });
    // Charts as wide as their container measure it when the window is resized; JupyterLab's panels do not tell them.
    const resized = () => dispatchEvent(new Event("resize"));
    const sized = new ResizeObserver(() => {
        if (drawn) place();
        if (seenWidth !== (seenWidth = el.clientWidth)) setTimeout(resized);
    });
    sized.observe(el);
    const settled = () => { paint(); resized(); };  // a theme's colours fade in, and containers are empty meanwhile
    const themed = new MutationObserver(() => [0, 300, 1200].forEach(wait => setTimeout(settled, wait)));
    themed.observe(document.body, {attributes: true});
    load();
    answered();
    known();
    return () => { sized.disconnect(); themed.disconnect(); clearTimeout(waiting); clearTimeout(typed); cancelAnimationFrame(frame); };
}
export default {render};
