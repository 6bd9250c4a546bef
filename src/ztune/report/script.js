"use strict";
(function () {
  var root = document.documentElement;
  var toggle = document.getElementById("theme");

  function stored(value) {
    try {
      if (value === undefined) return localStorage.getItem("ztune-theme");
      localStorage.setItem("ztune-theme", value);
    } catch (e) { /* a file opened from disk may have no storage: the choice then lasts for this view */ }
    return null;
  }
  function dark() {
    var chosen = root.dataset.theme;
    return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  }
  function label() { toggle.textContent = dark() ? "Light" : "Dark"; }
  var before = stored();
  if (before === "dark" || before === "light") root.dataset.theme = before;
  if (location.hash === "#dark" || location.hash === "#light") root.dataset.theme = location.hash.slice(1);
  toggle.hidden = false;
  label();
  toggle.addEventListener("click", function () {
    root.dataset.theme = dark() ? "light" : "dark";
    stored(root.dataset.theme);
    label();
  });

  // Copy buttons: the clipboard interface where the browser allows it, a selection otherwise.
  document.querySelectorAll("[data-copy]").forEach(function (button) {
    button.hidden = false;
    button.addEventListener("click", function () {
      var source = document.getElementById(button.dataset.copy);
      var said = button.textContent;
      function done(ok) {
        button.textContent = ok ? "Copied" : "Press Ctrl+C";
        setTimeout(function () { button.textContent = said; }, 1600);
      }
      function select() {
        var range = document.createRange();
        range.selectNodeContents(source);
        getSelection().removeAllRanges();
        getSelection().addRange(range);
        var ok = false;
        try { ok = document.execCommand("copy"); } catch (e) { ok = false; }
        done(ok);
      }
      if (navigator.clipboard && navigator.clipboard.writeText) {
        navigator.clipboard.writeText(source.textContent).then(function () { done(true); }, select);
      } else {
        select();
      }
    });
  });

  // Sorting: each sortable cell carries data-v; numbers sort as numbers, cells without a value last.
  document.querySelectorAll("table[data-sortable]").forEach(function (table) {
    var heads = Array.prototype.slice.call(table.tHead.rows[0].cells);
    heads.forEach(function (head, column) {
      var button = head.querySelector("button");
      if (!button) return;
      button.addEventListener("click", function () {
        var down = head.getAttribute("aria-sort") === "ascending";
        heads.forEach(function (h) { h.removeAttribute("aria-sort"); });
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        var body = table.tBodies[0];
        var rows = Array.prototype.slice.call(body.rows);
        rows.sort(function (a, b) {
          var x = a.cells[column].dataset.v, y = b.cells[column].dataset.v;
          if (x === "" || y === "") return (x === "") - (y === "");
          var order = isNaN(x) || isNaN(y) ? x.localeCompare(y) : x - y;
          return down ? -order : order;
        });
        rows.forEach(function (row) { body.appendChild(row); });
      });
    });
  });
})();
