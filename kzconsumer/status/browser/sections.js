// The sections of the page, each made of the document of its name.

const MOST_ROWS = 300; // of a table; a choice finds the others
const FIRST_REBALANCES = 12;
const known = {}; // the last document of each name

const HEALTH = { healthy: "good", unhealthy: "bad", "not examined": "warn" };
const MARKS = { stalled: "bad", "commits stop": "bad", "commits stall": "bad", "commits go back": "bad", unknown: "warn", paused: "warn", "caught up": "good" };
const FEW = 10; // partitions that are all shown, whatever their state

function showStatus() {
  const it = known.status;
  say(at("group"), it.group);
  say(at("member"), [it.member ?? "not a member yet", `kzconsumer ${it.version}`, it.state].filter(Boolean).join(" · "));
  const now = Date.now() / 1000;
  say(at("facts"), `cluster ${it.cluster} · up for ${duration(Math.max(0, Math.floor(now - it.started)))} · as of ${moment(now)}`);
  connection(it.health, HEALTH[it.health], it.findings.length ? "" : it.not_asked.join("; "));
  showFindings(it);
  document.title = `${it.health === "healthy" ? "" : `(!) ${it.health} · `}${it.group} · kzconsumer`;
  const figures = [
    ["Lag", ...atLeast(it.total.known, it.total.at_least, it.total.unknown, count, it.total.age)],
    ["Behind by", ...atLeast(it.total.seconds, it.total.seconds, it.total.unknown_seconds, duration)],
    ["Done in", it.eta === null ? null : duration(it.eta), ""],
    ["Rate", rate(it.rate), ""],
    ["Partitions", count(it.owned), it.stalled ? `${count(it.stalled)} stalled` : ""],
    ["Members", count(it.members), ""],
    ["Session", it.session, ""],
    ["Generation", count(it.generation), ""],
  ];
  const list = at("figures");
  for (const [place, [name, value, note]] of figures.entries()) {
    const box = list.children[place] ?? list.appendChild(make("div"));
    if (!box.children.length) {
      box.append(make("dt", name), make("dd"), make("dd", "", "note"));
      box.title = HELP[name];
    }
    box.hidden = value === null;
    say(box.children[1], value ?? "");
    say(box.children[2], note);
    box.children[2].hidden = !note;
  }
}

/** A sum as [value, note]: exact, or what it is at least and of how many partitions it is unknown. */
function atLeast(exact, least, unknown, word, age = null) {
  const why = Object.entries(unknown);
  if (!why.length) return [word(exact), age !== null && age > 15 ? `${duration(age)} ago` : ""];
  const reasons = why.map(([reason, n]) => (why.length > 1 ? `${count(n)} ${reason}` : reason)).join(", ");
  return [least ? `≥ ${word(least)}` : "unknown", `${count(why.reduce((sum, [, n]) => sum + n, 0))} unknown: ${reasons}`];
}

/** What is wrong, before everything else; nothing of it if nothing is. */
function showFindings(it) {
  const content = JSON.stringify([it.findings, it.not_asked]);
  const list = at("findings");
  if (list.content === content) return;
  list.content = content;
  at("wrong").hidden = !it.findings.length;
  list.replaceChildren(...it.findings.map((each) => {
    const item = make("li");
    item.append(make("p", each.text, "what"));
    const next = item.appendChild(make("p", undefined, "quiet"));
    next.append("More: ", make("code", each.command), `, and ${each.see.replace(".html", "")} in the documentation`);
    return item;
  }), ...(it.findings.length ? it.not_asked.map((text) => make("li", text, "quiet")) : []));
}

/** The first line of the page: the state, and a sentence for each reason. */
function connection(badge, mark, reason) {
  const shown = at("readiness");
  say(shown, badge);
  shown.className = `badge ${mark}`;
  say(at("reason"), reason);
}

function state(each) {
  const { why, age } = each.progress;
  let text = "";
  if (each.state === "stalled") text = `for ${duration(Math.floor(each.standing))}: ${each.hindrance}`;
  else if (why) text = `lag unknown: ${why.reason}`;
  else if (each.held_back) text = `${count(each.held_back)} behind an open transaction`;
  else if (age) text = `as of ${duration(age)} ago`;
  return { badge: each.state, mark: MARKS[each.state] ?? "", text };
}

function lag({ lag: known, at_least: least }) {
  return known !== null ? count(known) : least ? `≥ ${count(least)}` : UNKNOWN;
}

function owner(thread) {
  const member = known.status?.member;
  return member && thread.startsWith(`${member}-`) ? `thread ${thread.slice(member.length + 1)}` : thread;
}

const SEVERITY = ["stalled", "commits stop", "commits stall", "commits go back", "unknown", "paused", "behind", "caught up"];
const ORDERS = { // of partitions, which come by name
  name: () => 0,
  lag: (a, b) => b.progress.at_least - a.progress.at_least,
  worst: (a, b) => SEVERITY.indexOf(a.state) - SEVERITY.indexOf(b.state) || ORDERS.lag(a, b),
};

function showPartitions() {
  const { owned } = known.partitions;
  const named = at("named").value.trim().toLowerCase();
  const all = owned.length <= FEW || named || at("fine").checked;
  const fine = owned.filter((each) => each.state === "caught up").length;
  const chosen = owned
    .map((each) => ({ each, name: `${each.topic}-${each.partition}` }))
    .filter(({ each, name }) => name.toLowerCase().includes(named) && (all || each.state !== "caught up"));
  const order = ORDERS[at("order").value];
  chosen.sort((a, b) => order(a.each, b.each));
  const shown = chosen.slice(0, MOST_ROWS);
  say(at("partitions-count"), shown.length === owned.length ? "" : `${count(shown.length)} of ${count(owned.length)} shown`);
  say(at("partitions-fine"), all || !fine ? "" : `${plural(fine, "partition")} caught up`);
  fill(
    at("partitions-table"),
    shown.map(({ each, name }) => ({
      key: name,
      cells: [
        name, state(each), owner(each.owner), each.leader === null ? UNKNOWN : String(each.leader),
        offset(each.offsets.fetched), offset(each.offsets.consumed), offset(each.offsets.processed), offset(each.offsets.committed),
        offset(each.end), lag(each.progress), duration(each.progress.seconds), rate(each.rate), each.eta === null ? "" : duration(each.eta),
      ],
    })),
    !owned.length ? "No partition is owned." : named ? "No partition matches." : "Every partition is caught up.",
  );
  fill(
    at("queues-table"),
    known.partitions.queues.map((each) => ({
      key: `${each.topic}\n${each.thread}`,
      cells: [
        `${each.topic ?? "all topics"}, thread ${each.thread}`, count(each.chunks), bytes(each.bytes), bytes(each.limit),
        `${Math.min(100, Math.round((100 * each.bytes) / each.limit))} %`,
      ],
    })),
    "No stream yet.",
  );
}

/** The client of an owner: its badge in the table of the whole group. */
function client(thread) {
  if (thread === null) return { badge: "no owner", mark: "warn", text: "" };
  const id = thread.slice(0, thread.lastIndexOf("-"));
  const member = known.members?.members.find((each) => each.id === id);
  if (!member) return { badge: "not registered", mark: "warn", text: "" };
  return member.this ? { badge: "this member", mark: "good", text: "" } : member.kzconsumer ? "kzconsumer" : "original";
}

function showGroup() {
  const { at: read, reason, partitions, left_out: leftOut } = known.group;
  const fine = partitions.length > FEW ? partitions.filter((each) => each.owner !== null && each.lag === 0) : [];
  const shown = partitions
    .filter((each) => !fine.length || each.owner === null || each.lag !== 0)
    .sort((a, b) => (a.owner !== null) - (b.owner !== null) || (a.lag !== null) - (b.lag !== null) || b.lag - a.lag)
    .slice(0, MOST_ROWS);
  const total = partitions.length + leftOut;
  say(at("group-read"), [
    read === null ? null : `as of ${moment(read)}`,
    fine.length ? `${plural(fine.length, "partition")} owned and caught up` : null,
    shown.length + fine.length < total ? `${count(shown.length)} of ${count(total)} partitions shown` : null,
    reason,
  ].filter(Boolean).join(" · "));
  fill(
    at("group-table"),
    shown.map((each) => ({
      key: `${each.topic}-${each.partition}`,
      cells: [
        `${each.topic}-${each.partition}`, client(each.owner), each.owner ?? "", offset(each.committed), offset(each.end),
        each.why ? { badge: "", mark: "", text: each.why } : count(each.lag), rate(each.rate),
      ],
    })),
    read === null ? "The group has not been read yet." : "Every partition has an owner and is caught up.",
  );
}

function showMembers() {
  const rows = [];
  for (const member of known.members.members) {
    const subscription = `${Object.entries(member.subscription).map(([topic, threads]) => `${topic}, ${plural(threads, "thread")}`).join("; ")}${member.pattern === "static" ? "" : ` (${member.pattern.replace("_", " ")})`}`;
    const link = member.status && `http://${member.status}/status`;
    const client = member.this ? { badge: "this member", mark: "good", text: "" } : !member.kzconsumer ? "original" : link ? { text: member.status, link } : "kzconsumer";
    const threads = Object.entries(member.threads);
    if (!threads.length) rows.push({ key: member.id, cells: [member.id, client, subscription, "0", ""] });
    for (const [thread, partitions] of threads) {
      rows.push({ key: thread, cells: [thread, client, subscription, count(partitions.length), together(partitions)] });
    }
  }
  fill(at("members-table"), rows, "The group has not been read yet.");
}

const OUTCOMES = { done: "good", blocked: "warn", unreadable: "bad", interrupted: "bad" };
let allRebalances = false;

function showRebalances() {
  const all = [...known.rebalances.rebalances].reverse();
  const list = at("rebalances");
  const items = all.slice(0, allRebalances ? all.length : FIRST_REBALANCES).map((each) => {
    const time = make("time", moment(each.at));
    time.dateTime = new Date(each.at * 1000).toISOString();
    const numbers = ["claimed", "released", "moved", "kept", "blocked"].filter((name) => each[name]).map((name) => `${each[name]} ${name}`);
    const details = make("div");
    const first = details.appendChild(make("p"));
    first.append(make("strong", each.reasons.join(", ")), " ", make("span", each.outcome, `badge ${OUTCOMES[each.outcome] ?? ""}`));
    details.append(make("p", [
      `generation ${each.generation}`, `took ${duration(each.seconds)}`,
      each.members === null ? null : plural(each.members, "member"), numbers.join(", ") || null,
    ].filter(Boolean).join(" · "), "quiet"));
    const item = make("li");
    item.append(time, details);
    return item;
  });
  if (!items.length) items.push(make("li", "None yet."));
  if (items.length < all.length) {
    const item = make("li");
    const button = item.appendChild(make("button", `Show all ${all.length}`));
    button.addEventListener("click", () => { allRebalances = true; showRebalances(); });
    items.push(item);
  }
  list.replaceChildren(...items);
}

function showBatches() {
  const { present, ended, sink } = known.batches;
  describe(at("sink"), sink);
  say(at("batch"), present && present.stage !== "done"
    ? `${plural(present.records, "record")} of ${plural(present.ranges.length, "range")} at the stage “${present.stage}”.`
    : "No batch is being written.");
  const stages = ["collect", "wait", "plan", "write", "commit"];
  fill(
    at("batches-table"),
    [...ended].reverse().map((each, place) => ({
      key: `${each.ended} ${place}`,
      cells: [
        moment(each.ended), each.written ? { badge: "written", mark: "good", text: "" } : { badge: "not written", mark: "warn", text: "" },
        count(each.records), each.ranges.slice(0, 3).join(", ") + (each.ranges.length > 3 ? ` and ${each.ranges.length - 3} more` : ""),
        ...stages.map((stage) => (stage in each.seconds ? duration(each.seconds[stage]) : UNKNOWN)),
      ],
    })),
    "None yet.",
  );
}

function showErrors() {
  at("errors").hidden = !known.errors.errors.length;
  fill(
    at("errors-table"),
    known.errors.errors.map((each) => ({
      key: `${each.level} ${each.event}`,
      cells: [
        each.event, { badge: each.level, mark: each.level === "warning" ? "warn" : "bad", text: "" }, count(each.count),
        moment(each.first), moment(each.last), each.reason ?? UNKNOWN,
      ],
    })),
    "None since the start.",
  );
}

function showConfig() {
  fill(
    at("config-table"),
    Object.entries(known.config.config)
      .filter(([, value]) => value !== null)
      .map(([key, value]) => ({ key, cells: [key, typeof value === "string" ? value : JSON.stringify(value)] })),
    "",
  );
}
