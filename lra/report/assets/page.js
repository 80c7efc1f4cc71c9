const data = JSON.parse(document.getElementById("data").textContent);
const table = document.getElementById("cells");
const rows = [...table.tBodies[0].rows];
const filters = document.getElementById("filters");
const sheet = document.getElementById("sheet");
const tray = document.getElementById("tray");
const COLOURS = 7; // --s0 to --s6 of the style, in light and in dark
const DASHES = [[], [8, 3], [2, 2], [8, 3, 2, 3]];
const MISSING = "–";

/** An element; attributes whose value is null are left out, children may be text, elements, null or lists of them. */
function make(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null) element.setAttribute(name, value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null));
  return element;
}

/** An element without attributes: h.p("text"). */
const h = new Proxy({}, {get: (_, tag) => (...children) => make(tag, null, ...children)});

const number = (value, digits = 2) => (value == null ? MISSING : value.toFixed(digits));
const signed = (value) => (value < 0 ? "" : "+") + value.toFixed(2);
const whole = (value) => (value == null ? MISSING : Math.round(value).toLocaleString("en"));
const text = (value) => (value === undefined ? MISSING : typeof value === "string" ? value : JSON.stringify(value));
const minutes = (seconds) => (seconds == null ? MISSING : `${(seconds / 60).toFixed(1)} min`);

/** A table in a frame that scrolls; a body cell that is a number stands right. */
function grid(caption, headings, lines) {
  const cell = (value, place) => {
    if (place === 0) return make("th", {scope: "row"}, value);
    return make("td", {class: typeof value === "string" && /^[+\d–-]/.test(value) ? "number" : null}, value);
  };
  const head = h.tr(headings.map((heading) => make("th", {scope: "col"}, heading)));
  const body = lines.map((line) => h.tr(line.map(cell)));
  const table = h.table(h.caption(caption), h.thead(head), h.tbody(body));
  return make("section", {class: "scroll", tabindex: "0", "aria-label": caption}, table);
}

/** A table of keys and values. */
const pairs = (caption, headings, entries) =>
  grid(caption, headings, entries.map(([name, ...values]) => [name, ...values.map((value) => h.span(text(value)))]));

/** Nested objects as {"model.depth": 6}. */
function flat(value, prefix = "") {
  return Object.entries(value).reduce((found, [name, item]) => {
    const nested = item !== null && typeof item === "object" && !Array.isArray(item);
    return Object.assign(found, nested ? flat(item, `${prefix}${name}.`) : {[prefix + name]: item});
  }, {});
}

// The table: filters; table.js sorts.

function filter() {
  const wanted = Object.fromEntries(new FormData(filters));
  const words = wordsOf(wanted.text);
  let shown = 0;
  for (const row of rows) {
    const cell = data.cells[row.dataset.cell];
    const chosen = ["task", "protocol", "attention", "variant"].every(
      (name) => !wanted[name] || cell[name] === wanted[name],
    );
    const content = words.length
      ? `${row.textContent} ${cell.task} ${cell.protocol} ${cell.attention} ${cell.variant}`.toLowerCase()
      : "";
    row.hidden = !(chosen && words.every((word) => content.includes(word)));
    shown += !row.hidden;
  }
  filters.querySelector("output").value = `${shown} of ${rows.length} shown`;
}

// Charts.

const charts = new Set();
const colour = (shade) => (typeof shade === "string" ? shade : `var(--s${shade % COLOURS})`);
const probe = make("i", {hidden: ""});
document.body.append(probe);

/** A colour of the style as a canvas takes it, in light or in dark. */
function resolved(css) {
  probe.style.color = css;
  return getComputedStyle(probe).color;
}

/** The colour of one of so many that have an order, as blocks have: from violet over blue to green. */
const ordered = (place, count) =>
  `color-mix(in oklch increasing hue, var(--last) ${(100 * place) / Math.max(1, count - 1)}%, var(--first))`;

/**
 * Lines [{label, x, y, dash}] over the steps, and their numbers as a table. A `band` [[low], [high]] lies around a line.
 */
function chart(title, lines) {
  const host = h.div();
  const figure = h.figure(h.figcaption(title), host);
  const [tables, series, bands] = [[], [{label: "step"}], []];
  lines.forEach(({label, x, y, band, shade, dash}) => {
    const stroke = () => resolved(colour(shade));
    tables.push([x, y]);
    const points = {show: x.length < 2};
    series.push({label, stroke, width: 1.5, dash: DASHES[dash % DASHES.length], spanGaps: true, points});
    if (!band) return;
    const place = series.length;
    for (const edge of band) {
      tables.push([x, edge]);
      series.push({label: `${label}, band`, stroke, width: 0, spanGaps: true, points: {show: false}});
    }
    bands.push({series: [place + 1, place], fill: () => `color-mix(in srgb, ${stroke()} 15%, transparent)`});
  });
  const aligned = uPlot.join(tables);
  const faint = {stroke: "#8884", width: 1};
  const axis = {stroke: () => resolved("currentColor"), grid: faint, ticks: faint};
  const how = {
    width: 400,
    height: 240,
    series,
    bands,
    axes: [axis, axis],
    scales: {x: {time: false}},
    legend: {live: true},
    cursor: {drag: {x: true, y: true, uni: 20}},
  };
  const drawn = new uPlot(how, aligned, host);
  for (const [place, row] of [...host.querySelectorAll(".u-legend .u-series")].entries()) {
    row.hidden = series[place].label.endsWith(", band");
  }
  new ResizeObserver(() => host.clientWidth && drawn.setSize({width: host.clientWidth, height: 240})).observe(host);
  charts.add(drawn);
  const shown = (value) => (value == null ? MISSING : String(value));
  const numbers = h.details(h.summary("numbers"));
  const fill = () => {
    const rows = aligned[0].map((step) => [String(step), ...lines.map(({x, y}) => shown(y[x.indexOf(step)]))]);
    numbers.append(grid(title, ["step", ...lines.map((line) => line.label)], rows));
  };
  numbers.addEventListener("toggle", fill, {once: true});
  figure.append(numbers);
  return figure;
}

const NAMES = {
  val_accuracy: "validation accuracy (%)",
  val_perplexity: "validation perplexity",
  val_loss: "validation loss",
  train_loss: "training loss",
};

function quantities(cell) {
  return [`val_${cell.metric}`, "val_loss", "train_loss"];
}

/** One line of a run's curve; null where it has none. */
function line(run, name, label, shade, dash = shade) {
  if (!run.curve?.[name]) return null;
  return {label, x: data.steps[run.curve.step], y: run.curve[name], shade, dash};
}

/** The mean of a cell's finished runs at the steps that all of them have, within its 95 % interval. */
function course(cell, name, label, shade, dash) {
  const lines = cell.runs
    .filter((run) => run.score != null)
    .map((run) => line(run, name, label, shade))
    .filter(Boolean);
  if (lines.length < 2) return lines[0] ?? null;
  const x = lines[0].x.filter((step) => lines.every((other) => other.y[other.x.indexOf(step)] != null));
  const found = x.map((step) => moments(lines.map((other) => other.y[other.x.indexOf(step)])));
  const mean = found.map(({mean}) => mean);
  const edges = [found.map(({mean, half}) => mean - half), found.map(({mean, half}) => mean + half)];
  return {label, x, y: mean, band: edges, shade, dash};
}

/** What a probe found in each block of the first run that has it. */
function blockChart(cell, name, title) {
  const measured = cell.runs.find((run) => run.curve?.[name]?.some(Boolean));
  if (!measured) return null;
  const values = measured.curve[name];
  const blocks = values.find(Boolean).map((_, block, all) => ({
    label: `block ${block + 1}`,
    x: data.steps[measured.curve.step],
    y: values.map((value) => value?.[block] ?? null),
    shade: ordered(block, all.length),
    dash: 0,
  }));
  return chart(`${title}, seed ${measured.seed}`, blocks);
}

function curveCharts(cell) {
  const found = quantities(cell).map((name) => {
    const lines = cell.runs.map((run, place) => line(run, name, `seed ${run.seed}`, place)).filter(Boolean);
    return lines.length ? chart(NAMES[name], lines) : null;
  });
  found.push(...Object.entries(data.probes).map(([name, title]) => blockChart(cell, name, title)));
  const drawn = found.filter(Boolean);
  return drawn.length ? [h.h3("Curves"), make("div", {class: "charts"}, drawn)] : [];
}

// What is chosen to compare: "3" is a cell, "3.1" the seed 1 of it.

let chosen = [];

function item(id) {
  const [place, seed] = id.split(".");
  const cell = data.cells[place];
  const run = cell.runs.find((one) => String(one.seed) === seed);
  const name = `${cell.name}${run ? `, seed ${run.seed}` : ""}`;
  return {cell, run, name, title: `${name} (${cell.task}, ${cell.protocol})`, runs: run ? [run] : cell.runs};
}

function choose(id, wanted) {
  chosen = chosen.filter((other) => other !== id);
  if (wanted) chosen.push(id);
  showChosen();
}

function showChosen() {
  for (const box of document.querySelectorAll("input[type=checkbox]")) box.checked = chosen.includes(box.value);
  const titles = chosen.map((id) => item(id).title);
  const few = chosen.length < 2;
  tray.hidden = !chosen.length;
  tray.querySelector("[role=status]").textContent = few
    ? `${titles[0] ?? ""}: tick another one to compare with`
    : titles.join(" against ");
  document.getElementById("compare").disabled = few;
}

document.getElementById("compare").addEventListener("click", () => go(`compare/${chosen.join("/")}`));
document.getElementById("clear").addEventListener("click", () => {
  chosen = [];
  showChosen();
});

function box(id, label) {
  return make("input", {type: "checkbox", value: id, "aria-label": label});
}

document.addEventListener("change", ({target}) => {
  if (target.type === "checkbox") choose(target.value, target.checked);
});

// The sheet: one cell, or two things compared.

function open(title, subtitle, ...content) {
  sheet.setAttribute("aria-label", title);
  sheet.append(
    h.header(
      h.div(make("h2", {tabindex: "-1", autofocus: ""}, title), h.p(subtitle)),
      make("button", {type: "button", onclick: leave}, "close"),
    ),
    ...content.flat(Infinity).filter((part) => part !== null),
    tray,
  );
  showChosen();
  sheet.showModal();
  sheet.scrollTop = 0;
}

function close() {
  for (const drawn of charts) drawn.destroy();
  charts.clear();
  sheet.close();
  document.body.append(tray);
  sheet.replaceChildren();
}

function leave() {
  remember("");
  close();
}

/** A link to a file beside the record of a run; where they are packed, to the line that says where. */
function beside(run, name, label) {
  const folder = run.path.slice(0, run.path.lastIndexOf("/") + 1).split("/").map(encodeURIComponent).join("/");
  return make("a", {href: run.packed ? `#run/${folder.slice(0, -1)}` : folder + name}, label);
}

function seeds(place, cell) {
  const rules = ["last", "best_val", "best_test"].filter((rule) => cell.runs.some((run) => run.test?.[rule] !== undefined));
  const measures = ["best validation", "at step", "steps", "training", "tokens/s", "memory", "files"];
  const headings = ["seed", "compare", "status", ...rules.map((rule) => `test, ${rule}`), ...measures];
  const lines = cell.runs.map((run) => {
    const odd = run.status !== "finished" || run.flags.length > 0;
    const said = [run.status, ...run.flags].join(", ") + (run.reason ? `: ${run.reason}` : "");
    const status = make("span", {class: odd ? "bad" : null}, said);
    if (!run.path) return [String(run.seed), "", status, ...headings.slice(3).map(() => "")];
    return [
      beside(run, "record.json", String(run.seed)),
      box(`${place}.${run.seed}`, `compare seed ${run.seed}`),
      status,
      ...rules.map((rule) => number(run.test[rule])),
      number(run.best_val),
      whole(run.best_val_step),
      whole(run.steps),
      minutes(run.training_seconds),
      whole(run.tokens_per_second),
      run.peak_memory_bytes == null ? MISSING : `${(run.peak_memory_bytes / 2 ** 20).toFixed(0)} MiB`,
      run.packed
        ? beside(run, "", "packed")
        : [beside(run, "metrics.jsonl", "metrics"), " ", beside(run, "config.json", "config")],
    ];
  });
  return [h.h3("Seeds"), grid(`Every seed, with its record; ${cell.selection} is what the table shows`, headings, lines)];
}

function measured(cell) {
  const meter = (value) => make("meter", {min: "0", max: "100", value: String(value), "aria-hidden": "true"});
  const bar = (value) => [meter(value), ` ${number(value)}`];
  const groups = Object.entries(cell.diagnostics).map(([group, values]) => {
    const lines = Object.entries(values).map(([value, found]) => [value, bar(found.accuracy), number(found.baseline)]);
    return grid(`Test accuracy by ${group}`, [group, "accuracy", "baseline"], lines);
  });
  if (cell.calibration.length) {
    const lines = cell.calibration.map((bin) => [number(bin.confidence), bar(bin.accuracy), whole(bin.examples)]);
    groups.push(grid("Calibration", ["mean confidence", "accuracy", "predictions"], lines));
  }
  if (!groups.length) return [];
  return [h.h3("What was learned"), h.p("All finished seeds together."), make("div", {class: "charts"}, groups)];
}

const settings = (title, values) =>
  h.details(h.summary(title), pairs(title, ["key", "value"], Object.entries(flat(values))));

function provenance(cell) {
  const own = cell.runs.filter((run) => run.path).map((run) => [String(run.seed), flat(run.provenance)]);
  const names = [...new Set(own.flatMap(([, values]) => Object.keys(values)))];
  const bySeed = own.map(([seed, values]) => [seed, ...names.map((name) => values[name])]);
  return h.details(
    h.summary("Provenance"),
    pairs("The same for all seeds", ["what", "value"], Object.entries(flat(cell.provenance))),
    names.length ? pairs("By seed", ["seed", ...names], bySeed) : null,
  );
}

function openCell(place) {
  const cell = data.cells[place];
  const facts = Object.entries(cell.facts).filter(([, value]) => value);
  open(
    cell.name,
    `${cell.task}; protocol ${cell.protocol}. ${data.verdicts[cell.column]}`,
    cell.caveats.length ? make("p", {class: "bad"}, cell.caveats.join("; ")) : null,
    h.dl(facts.map(([term, value]) => h.div(h.dt(term), h.dd(value)))),
    seeds(place, cell),
    curveCharts(cell),
    measured(cell),
    h.h3("Receipts"),
    settings("Configuration", cell.config),
    provenance(cell),
  );
}

// Comparisons.

function openComparison(...ids) {
  const sides = ids.map(item);
  const [a] = sides;
  const same = sides.every(
    ({cell}) => cell.task === a.cell.task && cell.metric === a.cell.metric && cell.protocol === a.cell.protocol,
  );
  const distinct = new Set(sides.map((side) => side.name)).size === sides.length;
  const names = sides.map((side) => (distinct ? side.name : side.title));
  const taken = {};
  const looks = sides.map(({cell}, place) => {
    const used = (taken[cell.colour] = (taken[cell.colour] ?? -1) + 1);
    return {shade: cell.colour, dash: used || (place && sides[0].cell.colour === cell.colour ? place : 0)};
  });
  const of = ({cell, run}, place, name) => {
    const {shade, dash} = looks[place];
    return run ? line(run, name, names[place], shade, dash) : course(cell, name, names[place], shade, dash);
  };
  const overlay = quantities(a.cell)
    .filter((name) => sides.every(({cell}) => quantities(cell).includes(name)))
    .map((name) => [name, sides.map((side, place) => of(side, place, name)).filter(Boolean)])
    .filter(([, lines]) => lines.length)
    .map(([name, lines]) => chart(NAMES[name], lines));
  const what = same
    ? `${names.join(" against ")}; ${a.cell.task}, protocol ${a.cell.protocol}`
    : sides.map((side) => side.title).join(" against ");
  const apart = "Not the same task and protocol: these numbers cannot be compared.";
  const explained = h.p("Of a system: the mean over its seeds, within its 95 % interval.");
  open(
    "Comparison",
    what,
    same ? scores(sides, names) : make("p", {class: "bad"}, apart),
    differences(sides, names),
    overlay.length ? [h.h3("Curves"), explained, make("div", {class: "charts"}, overlay)] : null,
  );
}

/** Of runs: their scores, and the examples that only one of two gets right. Of systems: their scores by seed. */
function scores(sides, names) {
  const [a, ...others] = sides;
  const against = others.map((_, place) => (others.length > 1 ? `${names[0]} − ${names[place + 1]}` : "difference"));
  const minus = (one, two) => (one == null || two == null ? MISSING : signed(one - two));
  const line = (label, [first, ...rest]) => [
    label,
    ...[first, ...rest].map((value) => number(value)),
    ...rest.map((value) => minus(first, value)),
  ];
  if (sides.every((side) => side.run)) {
    const lines = [line("test", sides.map((side) => side.run.score))];
    return [
      h.h3("Scores"),
      grid(`Test ${a.cell.metric}`, ["split", ...names, ...against], lines),
      others.map((other, place) => {
        const who = others.length > 1 ? `${names[0]} and ${names[place + 1]}: ` : "";
        return h.p(who + byExample(discordant(a.run.right, other.run.right)));
      }),
    ];
  }
  const finished = (side) => side.runs.filter((run) => run.score != null);
  const [mine, ...theirs] = sides.map((side) => new Map(finished(side).map((run) => [run.seed, run.score])));
  const seeds = [...new Set([mine, ...theirs].flatMap((found) => [...found.keys()]))].sort((one, two) => one - two);
  const lines = seeds.map((seed) => line(String(seed), [mine, ...theirs].map((found) => found.get(seed))));
  const verdicts = theirs.map((found, place) => {
    const common = [...mine.keys()].filter((seed) => found.has(seed));
    const who = others.length > 1 ? `${against[place]}. ` : "";
    return h.p(who + verdict(common.map((seed) => mine.get(seed) - found.get(seed))));
  });
  return [
    h.h3("Scores"),
    verdicts,
    h.p("Nothing is corrected for looking at several; the verdicts of the table are by Welch's test."),
    grid(`Test ${a.cell.metric}, by seed`, ["seed", ...names, ...against], lines),
  ];
}

/** Mean, standard deviation and half of the 95 % t-interval. */
function moments(values) {
  const n = values.length;
  const mean = values.reduce((sum, value) => sum + value, 0) / n;
  const sd = n < 2 ? 0 : Math.sqrt(values.reduce((sum, value) => sum + (value - mean) ** 2, 0) / (n - 1));
  return {n, mean, sd, half: n < 2 ? 0 : (data.quantiles[n - 2] * sd) / Math.sqrt(n)};
}

function verdict(differences) {
  const {n, mean, sd, half} = moments(differences);
  if (n === 0) return "They have no finished seed in common.";
  if (n === 1) return `Difference ${signed(mean)}, of one seed.`;
  const ends = `${signed(mean - half)} to ${signed(mean + half)}`;
  return `Paired by seed, first minus second: ${signed(mean)} ± ${sd.toFixed(2)} (sd), 95 % t-interval ${ends}, n = ${n}.`;
}

function byExample(found) {
  if (!found) return "There is no test of the examples: not both kept predictions, or an example has several answers.";
  const only = `Only the first is right on ${found.first} test examples, only the second on ${found.second}`;
  return `${only}: McNemar's exact p = ${found.p.toPrecision(2)}.`;
}

/** McNemar's exact test of two packed arrays of bits: twice the smaller tail of a fair coin. */
function discordant(one, two) {
  if (!one || !two) return null;
  const [a, b] = [one, two].map((packed) => Uint8Array.from(atob(packed), (character) => character.charCodeAt(0)));
  const bits = (byte) => byte.toString(2).replaceAll("0", "").length;
  let first = 0,
    second = 0;
  a.forEach((byte, place) => {
    first += bits(byte & ~b[place]);
    second += bits(~byte & b[place]);
  });
  const n = first + second;
  let term = -n * Math.LN2,
    tail = Math.exp(term);
  for (let k = 1; k <= Math.min(first, second); k++) {
    term += Math.log((n - k + 1) / k);
    tail += Math.exp(term);
  }
  return {first, second, p: Math.min(1, 2 * tail)};
}

function differences(sides, names) {
  const known = sides.map(({cell, run}) =>
    flat({
      task: cell.task,
      protocol: cell.protocol,
      attention: cell.attention,
      variant: cell.variant,
      config: cell.config,
      provenance: {...cell.provenance, ...run?.provenance},
      ...(run ? {seed: run.seed} : {}),
    }),
  );
  const keys = [...new Set(known.flatMap((one) => Object.keys(one)))].filter(
    (key) => new Set(known.map((one) => JSON.stringify(one[key]))).size > 1,
  );
  const lines = keys.map((key) => [key, ...known.map((one) => one[key])]);
  return [
    h.h3("Configuration and provenance"),
    keys.length ? pairs("What differs", ["key", ...names], lines) : h.p("No difference."),
  ];
}

// The address says what is open, so that links and the browser's back button work.
//
// Behind a question mark it says how the table is filtered and sorted: #cell/3?task=listops&sort=mean ± sd

function state() {
  const chosenFilters = [...new FormData(filters)].filter(([, value]) => value);
  const heading = table.tHead.querySelector("[aria-sort]");
  const order = heading ? [["sort", heading.textContent], ["order", heading.getAttribute("aria-sort")]] : [];
  const words = new URLSearchParams([...chosenFilters, ...order]).toString();
  return words && `?${words}`;
}

function go(place) {
  location.hash = place + state();
}

/** Let the address say what the table shows; nothing is opened, and the way back is as before. */
function remember(place = location.hash.slice(1).split("?")[0]) {
  const hash = place + state();
  history.replaceState(null, "", hash ? `#${hash}` : location.pathname + location.search);
}

function restore(words) {
  const wanted = new URLSearchParams(words);
  for (const field of filters.querySelectorAll("select, input")) field.value = wanted.get(field.name) ?? "";
  const heading = [...table.tHead.rows[0].cells].find((cell) => cell.textContent === wanted.get("sort"));
  if (heading) sort(heading, rows, wanted.get("order"));
  filter();
}

function route() {
  close();
  const [place, words] = location.hash.slice(1).split("?");
  if (words !== undefined) restore(words);
  const [kind, ...ids] = place.split("/");
  const known = ids.every((id) => data.cells[id.split(".")[0]]);
  if (kind === "cell" && ids.length === 1 && known) openCell(ids[0]);
  else if (kind === "compare" && ids.length >= 2 && known) openComparison(...ids);
}

// The rows that are shown, for other programs.

function shownRows() {
  const head = [...table.tHead.rows[0].cells].slice(1).map((cell) => cell.textContent.trim());
  const name = (cell) => cell.querySelector("a")?.textContent ?? cell.lastChild?.textContent ?? "";
  const body = [...table.tBodies[0].rows].filter((row) => !row.hidden);
  return [head, ...body.map((row) => [...row.cells].slice(1).map((cell) => name(cell).trim()))];
}

const quoted = (value) => (/[",\n]/.test(value) ? `"${value.replaceAll('"', '""')}"` : value);
const TEX = {
  ...{"\\": "\\textbackslash{}", "±": "$\\pm$", "−": "$-$", "²": "$^2$", "√": "$\\surd$", "~": "\\textasciitilde{}"},
  ...{"^": "\\textasciicircum{}", "<": "$<$", ">": "$>$", "|": "$|$", "[": "{[}", "*": "{*}"},
};

function latex(lines) {
  const safe = (value) => value.replace(/[\\±−²√~^<>|[*]|[&%$#_{}]/g, (found) => TEX[found] ?? `\\${found}`);
  const [head, ...body] = lines.map((line) => `${line.map(safe).join(" & ")} \\\\`);
  return [`\\begin{tabular}{l${"r".repeat(lines[0].length - 1)}}`, "\\hline", head, "\\hline", ...body, "\\hline", "\\end{tabular}"].join("\n");
}

function hand(title, content) {
  close();
  const field = make("textarea", {readonly: "", "aria-label": title});
  field.value = content;
  const copy = () => {
    field.select();
    const selected = () => document.execCommand("copy");
    if (navigator.clipboard) navigator.clipboard.writeText(content).catch(selected);
    else selected(); // a page over plain http has no clipboard
  };
  open(title, "The rows that are shown.", field, h.p(make("button", {type: "button", onclick: copy}, "copy")));
  field.select();
}

const redraw = () => charts.forEach((drawn) => drawn.redraw(false));
document.getElementById("theme").addEventListener("click", redraw); // after table.js has changed it
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
filters.addEventListener("input", () => {
  filter();
  remember();
});
filters.addEventListener("reset", () =>
  setTimeout(() => {
    filter();
    remember();
  }),
);
document.getElementById("csv").addEventListener("click", () =>
  hand("CSV", shownRows().map((line) => line.map(quoted).join(",")).join("\n")),
);
document.getElementById("latex").addEventListener("click", () => hand("LaTeX", latex(shownRows())));
filters.addEventListener("submit", (event) => event.preventDefault());
table.tHead.addEventListener("click", ({target}) => {
  if (target.tagName !== "BUTTON") return;
  const heading = target.closest("th");
  sort(heading, rows, pressed(heading));
  remember();
});
table.tBodies[0].addEventListener("click", ({target}) => {
  const row = target.closest("tr");
  if (!target.closest("a, input, td:first-child")) go(`cell/${row.dataset.cell}`);
});
sheet.addEventListener("cancel", (event) => {
  event.preventDefault();
  leave();
});
addEventListener("hashchange", route);
filter();
showChosen();
route();
