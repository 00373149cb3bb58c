// The sections of the page, each made of the document of its name.

const MOST_ROWS = 300; // of a table; a choice finds the others
const FIRST_REBALANCES = 12;
const known = {}; // the last document of each name

const HEALTH = { healthy: "good", unhealthy: "bad", "not examined": "warn" };
const MARKS = { OK: "good", WARN: "warn", STOP: "bad", STALL: "bad", REWIND: "bad" };

function showStatus() {
  const it = known.status;
  say(at("group"), it.group);
  say(at("member"), [it.member ?? "not a member yet", `kzconsumer ${it.version}`, it.state].filter(Boolean).join(" · "));
  const now = Date.now() / 1000;
  say(at("facts"), `cluster ${it.cluster} · up for ${duration(Math.max(0, Math.floor(now - it.started)))} · as of ${moment(now)}`);
  connection(it.health, HEALTH[it.health], [...it.findings.map((each) => each.text), ...it.not_asked]);
  document.title = `${it.health === "healthy" ? "" : `(!) ${it.health} · `}${it.group} · kzconsumer`;
  const left = (known.partitions?.owned ?? []).map((each) => each.eta);
  const figures = [
    ["Partitions", count(it.owned)],
    ["Members", count(it.members)],
    ["Lag", count(it.lag)],
    ["Behind by", duration(it.lag_seconds)],
    ["Rate", rate(it.rate)],
    ["Done in", left.length && !left.includes(null) ? duration(Math.max(...left)) : null],
    ["Stalled", count(it.stalled), it.stalled ? "bad" : ""],
    ["Judgement", it.judgement ?? UNKNOWN, MARKS[it.judgement] ?? ""],
    ["Session", it.session, it.session === "held" ? "good" : "warn"],
    ["Generation", count(it.generation)],
  ];
  const list = at("figures");
  for (const [place, [name, value, badgeMark]] of figures.entries()) {
    const box = list.children[place] ?? list.appendChild(make("div"));
    if (!box.children.length) {
      box.append(make("dt", name), make("dd"));
      box.title = HELP[name];
    }
    box.hidden = value === null;
    put(box.lastChild, badgeMark ? { badge: value, mark: badgeMark, text: "" } : value ?? "");
  }
}

/** The first line of the page: the state, and a sentence for each reason. */
function connection(badge, mark, reasons) {
  const shown = at("readiness");
  say(shown, badge);
  shown.className = `badge ${mark}`;
  say(at("reason"), reasons.join("; "));
}

function state(each) {
  const paused = each.paused ? "paused" : "";
  if (each.stalled) {
    const judgement = each.judgement && each.judgement !== "OK" ? `, ${each.judgement}` : "";
    return { badge: "stalled", mark: paused ? "warn" : "bad", text: `for ${duration(Math.floor(each.standing))}: ${each.hindrance}${judgement}` };
  }
  if (!each.judgement) return paused || UNKNOWN;
  return { badge: each.judgement, mark: MARKS[each.judgement], text: paused };
}

function owner(thread) {
  const member = known.status?.member;
  return member && thread.startsWith(`${member}-`) ? `thread ${thread.slice(member.length + 1)}` : thread;
}

const SEVERITY = ["OK", "WARN", "STOP", "STALL", "REWIND"];
const ORDERS = { // of partitions, which come by name
  name: () => 0,
  lag: (a, b) => (b.lag.processed ?? -1) - (a.lag.processed ?? -1),
  worst: (a, b) => b.stalled - a.stalled || SEVERITY.indexOf(b.judgement) - SEVERITY.indexOf(a.judgement) || ORDERS.lag(a, b),
};

function showPartitions() {
  const { owned } = known.partitions;
  const named = at("named").value.trim().toLowerCase();
  const behind = at("behind").checked;
  const chosen = owned
    .map((each) => ({ each, name: `${each.topic}-${each.partition}` }))
    .filter(({ each, name }) => name.toLowerCase().includes(named) && (!behind || each.stalled || each.lag.processed > 0));
  const order = ORDERS[at("order").value];
  chosen.sort((a, b) => order(a.each, b.each));
  const shown = chosen.slice(0, MOST_ROWS);
  say(at("partitions-count"), shown.length === owned.length ? "" : `${count(shown.length)} of ${count(owned.length)} shown`);
  fill(
    at("partitions-table"),
    shown.map(({ each, name }) => ({
      key: name,
      cells: [
        name, state(each), owner(each.owner), each.leader === null ? UNKNOWN : String(each.leader),
        offset(each.offsets.fetched), offset(each.offsets.consumed), offset(each.offsets.processed), offset(each.offsets.committed),
        offset(each.end), count(each.lag.processed), duration(each.lag_seconds.processed), rate(each.rate), each.eta === null ? "" : duration(each.eta),
      ],
    })),
    owned.length ? "No partition matches." : "No partition is owned.",
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
  const shown = [...partitions].sort((a, b) => (a.owner !== null) - (b.owner !== null) || (b.lag ?? -1) - (a.lag ?? -1)).slice(0, MOST_ROWS);
  const total = partitions.length + leftOut;
  say(at("group-read"), [
    read === null ? null : `as of ${moment(read)}`,
    shown.length < total ? `${count(shown.length)} of ${count(total)} partitions shown` : null,
    reason,
  ].filter(Boolean).join(" · "));
  fill(
    at("group-table"),
    shown.map((each) => ({
      key: `${each.topic}-${each.partition}`,
      cells: [
        `${each.topic}-${each.partition}`, client(each.owner), each.owner ?? "", offset(each.committed), offset(each.end),
        count(each.lag), rate(each.rate),
      ],
    })),
    "The group has not been read yet.",
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
  const stages = ["collect", "prepare", "wait", "plan", "write", "commit"];
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
