"use strict";
(function () {
  var PAGE = 100;
  var data = JSON.parse(document.getElementById("data").textContent);
  var rows = data.rows;
  var form = document.getElementById("filters");
  var table = document.getElementById("rows");
  var counted = document.getElementById("counted");
  var before = document.getElementById("before"), after = document.getElementById("after");

  function run(row) { return data.runs[row.run]; }

  // What can be filtered: a name, and the value of a row. An empty value is shown as a dash.
  var FILTERS = [
    ["Database", function (r) { return run(r).database; }],
    ["Workload", function (r) { return run(r).workload; }],
    ["Disk class", function (r) { return r.device; }],
    ["Disks", function (r) { return r.disks; }],
    ["ARC", function (r) { return r.arc_text; }],
    ["OpenZFS", function (r) { return run(r).openzfs; }],
    ["Where it ran", function (r) { return run(r).place; }],
    ["Basis", function (r) { return run(r).basis; }],
    ["Durability", function (r) { return r.durability; }]
  ];
  var sizes = {};
  rows.forEach(function (r) { if (r.arc !== null) sizes[r.arc_text] = r.arc; });

  function figure(name) {
    return { value: function (r) { return r.cells[name] || null; }, figure: true };
  }
  var COLUMNS = [
    { head: "Database", value: function (r) { return run(r).database + " " + run(r).workload; } },
    { head: "Layout", value: function (r) { return r.layout; } },
    { head: "Disks", value: function (r) { return r.disks || r.device; } },
    { head: "ARC", value: function (r) { return r.arc; }, number: true },
    { head: "OpenZFS", value: function (r) { return run(r).openzfs; } },
    { head: "Where", value: function (r) { return run(r).place + " " + run(r).basis; } },
    Object.assign({ head: "Time" }, figure("time")),
    Object.assign({ head: "Written" }, figure("written")),
    Object.assign({ head: "Read" }, figure("read")),
    Object.assign({ head: "Space" }, figure("space")),
    Object.assign({ head: "Operations/s" }, figure("rate")),
    { head: "Trials", value: function (r) { return r.trials; }, number: true },
    { head: "Date", value: function (r) { return r.date; } }
  ];

  function make(tag, text, name) {
    var found = document.createElement(tag);
    if (text !== undefined && text !== "") found.textContent = text;
    if (name) found.className = name;
    return found;
  }

  var text = make("input");
  text.type = "search";
  text.placeholder = "recordsize=16K";
  var label = make("label", "Layout or run has the words", "wide");
  label.appendChild(text);
  form.appendChild(label);
  var selects = FILTERS.map(function (filter) {
    var values = Array.from(new Set(rows.map(filter[1])));
    values.sort(function (a, b) {
      if (filter[0] === "ARC") return (sizes[a] || 0) - (sizes[b] || 0);
      return String(a).localeCompare(String(b), undefined, { numeric: true });
    });
    var select = make("select");
    select.appendChild(new Option("all", ""));
    values.forEach(function (value, i) { select.appendChild(new Option(value === "" ? "–" : value, String(i + 1))); });
    var one = make("label", filter[0]);
    one.appendChild(select);
    form.appendChild(one);
    one.hidden = values.length < 2;
    return { select: select, values: values, of: filter[1] };
  });
  form.hidden = false;

  var words = rows.map(function (r) {
    var about = run(r).about;
    var said = [r.layout, r.name || "", Object.keys(about).map(function (key) { return about[key]; }).join(" ")];
    return said.join(" ").toLowerCase();
  });
  var shown = [], page = 0, sorted = -1, down = false, open = new Set();

  function filtered() {
    var wanted = text.value.toLowerCase().split(/\s+/).filter(Boolean);
    var active = selects.filter(function (s) { return s.select.value !== ""; });
    shown = [];
    for (var i = 0; i < rows.length; i++) {
      var row = rows[i];
      var fits = active.every(function (s) { return s.of(row) === s.values[s.select.value - 1]; });
      if (fits && wanted.every(function (word) { return words[i].indexOf(word) >= 0; })) shown.push(row);
    }
  }

  // Figures: first by the ratio to the base layout, then those that have none by themselves.
  function order(a, b, column) {
    var x = column.value(a), y = column.value(b);
    var none = function (v) { return v === null || v === ""; };
    if (none(x) || none(y)) return { fixed: none(x) - none(y) };
    if (column.figure) {
      if ((x[2] === null) !== (y[2] === null)) return { fixed: x[2] === null ? 1 : -1 };
      return { free: x[2] === null ? x[0] - y[0] : x[2] - y[2] };
    }
    if (column.number) return { free: x - y };
    return { free: String(x).localeCompare(String(y), undefined, { numeric: true }) };
  }
  function sort() {
    if (sorted < 0) return;
    shown.sort(function (a, b) {
      var found = order(a, b, COLUMNS[sorted]);
      return found.fixed !== undefined ? found.fixed : (down ? -found.free : found.free);
    });
  }

  function pills(cell, row) {
    function pill(said, kind) { cell.append(" ", make("span", said, "pill " + kind)); }
    if (run(row).published) pill("published, not ours", "warning");
    if (row.baseline) pill("base layout", "");
    if (row.failed) pill("failed", "danger");
    if (row.durability && row.durability !== "nothing-acknowledged") pill("durability: " + row.durability, "danger");
  }

  function line(row) {
    var tr = make("tr", "", (run(row).published ? "published" : "") + (open.has(row) ? " open" : ""));
    var cell = make("td", run(row).database, "wrap");
    cell.appendChild(make("span", run(row).workload, "sub"));
    tr.appendChild(cell);
    cell = make("th", "", "layout");
    cell.scope = "row";
    var button = make("button", row.layout, "more");
    button.type = "button";
    button.setAttribute("aria-expanded", String(open.has(row)));
    button.addEventListener("click", function () {
      if (open.has(row)) open.delete(row); else open.add(row);
      draw();
    });
    cell.appendChild(button);
    pills(cell, row);
    tr.appendChild(cell);
    cell = make("td", row.disks || row.device || "–", "wrap");
    if (row.disks && row.device) cell.appendChild(make("span", row.device, "sub"));
    tr.appendChild(cell);
    tr.appendChild(make("td", row.arc_text || "–", "num"));
    tr.appendChild(make("td", run(row).openzfs || "–"));
    cell = make("td", run(row).place || "–");
    cell.appendChild(make("span", run(row).basis, "sub"));
    tr.appendChild(cell);
    COLUMNS.filter(function (c) { return c.figure; }).forEach(function (column) {
      var found = column.value(row);
      var td = make("td", found ? (found[2] === null ? found[1] : found[3]) : "–", "num");
      if (found && found[2] !== null) td.appendChild(make("span", found[1], "sub"));
      tr.appendChild(td);
    });
    tr.appendChild(make("td", String(row.trials), "num"));
    tr.appendChild(make("td", row.date));
    return tr;
  }

  function pairs(title, list) {
    var part = make("div");
    part.appendChild(make("h3", title));
    var dl = make("dl", "", "kv");
    list.forEach(function (pair) {
      dl.appendChild(make("dt", pair[0]));
      dl.appendChild(make("dd", pair[1]));
    });
    part.appendChild(dl);
    return part;
  }
  function entries(of) { return Object.keys(of).map(function (key) { return [key, String(of[key])]; }); }

  function detail(row) {
    var tr = make("tr"), cell = make("td", "", "detail"), columns = make("div", "", "columns");
    cell.colSpan = COLUMNS.length;
    columns.appendChild(pairs(run(row).published ? "Published by somebody else" : "Where it comes from", entries(run(row).about)));
    if (row.more.length) columns.appendChild(pairs("Figures", row.more));
    var differs = entries(row.set);
    if (differs.length) columns.appendChild(pairs("Set otherwise than in the base layout", differs));
    var rest = entries(run(row).base).filter(function (pair) { return !(pair[0] in row.set); });
    if (rest.length) columns.appendChild(pairs("As in the base layout", rest));
    cell.appendChild(columns);
    tr.appendChild(cell);
    return tr;
  }

  function draw() {
    var body = table.tBodies[0], pages = Math.max(1, Math.ceil(shown.length / PAGE));
    page = Math.min(page, pages - 1);
    var from = page * PAGE, part = shown.slice(from, from + PAGE);
    var made = document.createDocumentFragment();
    part.forEach(function (row) {
      made.appendChild(line(row));
      if (open.has(row)) made.appendChild(detail(row));
    });
    body.replaceChildren(made);
    counted.textContent = part.length
      ? "Lines " + (from + 1) + " to " + (from + part.length) + " of " + shown.length.toLocaleString("en") +
        (shown.length < rows.length ? " that fit, " + rows.length.toLocaleString("en") + " in all" : "")
      : "No line fits; there are " + rows.length.toLocaleString("en") + " in all";
    before.disabled = page === 0;
    after.disabled = page === pages - 1;
  }
  function again() { page = 0; filtered(); sort(); draw(); }

  var heads = make("tr");
  COLUMNS.forEach(function (column, i) {
    var th = make("th", "", column.figure || column.number ? "num" : ""), button = make("button", column.head);
    th.scope = "col";
    button.type = "button";
    button.addEventListener("click", function () {
      down = sorted === i && !down;
      sorted = i;
      Array.from(heads.cells).forEach(function (h) { h.removeAttribute("aria-sort"); });
      th.setAttribute("aria-sort", down ? "descending" : "ascending");
      again();
    });
    th.appendChild(button);
    heads.appendChild(th);
  });
  table.tHead.appendChild(heads);
  text.addEventListener("input", again);
  form.addEventListener("change", again);
  form.addEventListener("submit", function (event) { event.preventDefault(); });
  before.addEventListener("click", function () { page -= 1; draw(); });
  after.addEventListener("click", function () { page += 1; draw(); });
  document.getElementById("reset").addEventListener("click", function () { form.reset(); again(); });
  again();
})();
