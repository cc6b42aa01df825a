import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { existsSync } from "node:fs";
import { readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { after, before, test } from "node:test";
import type { Command } from "commander";
import { program } from "../../src/cli/program.ts";
import { selectFrom } from "../selection.ts";
import { type JsonError, Place } from "./holdfast.ts";

let place: Place;
before(async () => (place = await Place.make()));
after(() => place.remove());

/** As a Node whose SQLite is another one. */
function withSqlite(versions: { node: string; sqlite: string | undefined }): string[] {
  const changed = `{ ...process.versions, node: "${versions.node}", sqlite: ${JSON.stringify(versions.sqlite)} }`;
  return ["--import", `data:text/javascript,Object.defineProperty(process, "versions", { value: ${changed} })`];
}
const ADVICE = "and Holdfast needs SQLite 3.51.3 or newer: use Node 22.23, 24.21 or 26, or a newer release of these.";

test("a Node without SQLite is refused in one sentence, before anything is imported", async () => {
  const node = withSqlite({ node: "20.20.2", sqlite: undefined });
  assert.deepEqual(await place.run(["status"], { node }), {
    code: 2,
    stdout: "",
    stderr: `Node 20.20.2 has no SQLite, ${ADVICE}\n`,
  });
});

test("a Node is refused for its SQLite, whatever its own version, by the command and by the library alike", async () => {
  const node = withSqlite({ node: "25.0.0", sqlite: "3.50.4" });
  const told = `Node 25.0.0 has SQLite 3.50.4, ${ADVICE}`;
  const { code, stderr } = await place.run(["enqueue", "x", "1", "--db", "old.db"], { node });
  assert.equal(code, 2);
  assert.ok(stderr.startsWith(`error: ${told} [SQLITE_TOO_OLD]\n`), stderr);
  const open = `const { open } = await import("${new URL("../../src/index.ts", import.meta.url).href}");
    await open("old.db").catch(({ code, message }) => console.log(code, message));`;
  const library = spawnSync(process.execPath, [...node, "--input-type=module", "-e", open], {
    cwd: place.folder,
    encoding: "utf8",
  });
  assert.equal(library.stdout, `SQLITE_TOO_OLD ${told}\n`, library.stderr);
});

const found = async (...args: string[]) => (await program(args)).commands.map((command) => command.name());

test("a command is found by its name, behind any options, and no other is loaded for it; all are where none is named", async () => {
  const all = await found();
  assert.ok(all.length >= 20);
  for (const name of all) {
    const expected = name === "completion" ? all : [name];
    assert.deepEqual(await found("--json", "--db", "status", "--schema=x", name, "run"), expected);
  }
  for (const args of [["--help"], ["help", "run"], ["frob", "run"], ["--db", "run"]]) assert.deepEqual(await found(...args), all);
});

test("the list of commands in the help, which loads none of them, says what each says of itself", async () => {
  assert.equal((await program(["--help"])).helpInformation(), (await program()).helpInformation());
});

test("the help of the program has every command in a group and every global option, on a screen of 80 × 40", async () => {
  const root = await program();
  const lines = root.helpInformation().trimEnd().split("\n");
  assert.ok(lines.length < 40, `${lines.length} lines`);
  assert.deepEqual(
    lines.filter((line) => [...line].length > 80),
    [],
  );
  const groups = lines.flatMap((line) => /^([A-Z][a-z]+) +[a-z]+ {2,}/.exec(line)?.[1] ?? []);
  assert.deepEqual(groups, ["Jobs", "Pipelines", "Operate", "Recover", "Develop"]);
  const rows = lines.map((line) => line.slice(11));
  for (const command of root.commands)
    assert.ok(
      rows.some((row) => row.startsWith(`${command.name()} `)),
      command.name(),
    );
  for (const { flags, long } of root.options)
    assert.ok(long === "--version" || rows.some((row) => row.startsWith(`${flags} `)), flags);
});

test("every command has a help text with an example, and names the help that has the global options", async () => {
  const [, ...commands] = commandsOf(await program());
  const helps = commands.map((command) => {
    let text = "";
    command.configureOutput({ writeOut: (more) => (text += more) }).outputHelp();
    assert.doesNotMatch(text, /\n {2}--(?:db|schema|no-config) /, command.name());
    assert.match(text, /\nGlobal options: holdfast --help\n/, command.name());
    assert.match(text, /\nExample:\n {2}.*holdfast /, command.name());
    return text;
  });
  assert.ok(helps.length >= 18);
  const { code, stdout } = await place.run(["jobs", "list", "--help"]);
  assert.equal(code, 0);
  assert.match(stdout, /^Usage: holdfast jobs list \[options\]\n[^]*\nExample:\n {2}holdfast jobs list/);
});

function commandsOf(command: Command): Command[] {
  return [command, ...command.commands.flatMap((child) => commandsOf(child as Command))];
}

test("wrong usage exits 2 with a line that helps", async () => {
  const known: [string[], RegExp][] = [
    [["stats"], /unknown command 'stats'\. Did you mean status\? \[USAGE\]\nhint: {2}Commands: work, stop, enqueue, /],
    [
      ["jobs", "lits"],
      /unknown command 'lits'\. Did you mean list\? \[USAGE\]\nhint: {2}Commands: list, show, why, retry, cancel, remove\./,
    ],
    [["queues", "frob"], /unknown command 'frob' \[USAGE\]\nhint: {2}Commands: list, pause, resume\./],
    [["schedules", "frob", "x"], /unknown command 'frob' .*\nhint: {2}Commands: list, pause, resume, remove, trigger\./],
    [["events", "--limit", "3", "frob"], /unknown command 'frob' .*\nhint: {2}Commands: sinks, forget\./],
    [
      ["builds", "frob"],
      /unknown command 'frob' .*\nhint: {2}Commands: list, show, resume, approve, token, refuse, abandon, why, export\./,
    ],
    [["builds", "approve", "x", "--token", "y"], /required option '--budget <usd>' not specified/],
    [["run", "docs.ts", "--budget", "much"], /Give dollars, e\.g\. 10, or usd=10,tokens=100000/],
    [["run", "docs.ts", "--token", "hft_x"], /--token was given without --budget/],
    [["quarantine", "frob"], /unknown command 'frob' .*\nhint: {2}Commands: list, retry, purge\./],
    [["queues", "list", "frob"], /too many arguments for 'list'/],
    [["settle", "x", "--succeed", "{bad"], /The output after --succeed is not valid JSON/],
    [["status", "--quick"], /unknown option '--quick'/],
    [["jobs", "list", "--state", "done"], /Allowed choices are waiting, pending, running/],
    [["quarantine", "retry"], /Neither an id nor --all was given/],
  ];
  const cases = selectFrom(known, 3);
  const all = await Promise.all(cases.map(([args]) => place.run(args)));
  for (const [i, { code, stdout, stderr }] of all.entries()) {
    assert.equal(code, 2);
    assert.equal(stdout, "");
    assert.match(stderr, (cases[i] as [string[], RegExp])[1]);
    assert.match(stderr, /^error: .+ \[USAGE\]\nhint: {2}.+\n$/);
    assert.doesNotMatch(stderr, /\n\s+at /, "no stack");
  }
  const { error } = await place.json<JsonError>(["status", "--quick"], 2);
  assert.deepEqual(error, {
    code: "USAGE",
    message: "unknown option '--quick'",
    hint: "Add --help to see what the command takes.",
  });
  const { error: ofId } = await place.json<JsonError>(["jobs", "show", "-rf"], 2);
  assert.equal(ofId.hint, "Add --help to see what the command takes. Put -- before an id that begins with a dash.");
  assert.match((await place.run(["jobs", "show", "--", "-rf"])).stderr, /NO_SUCH_JOB|NO_DATABASE/);
});

/** Where nothing, or less, is meant: a priority may be any whole number, and no failure at all may be allowed. */
const ACCEPTED: Record<string, string[]> = { "--priority": ["0", "-1"], "--max-failures": ["0"], "--port": ["0"] };

test("every option that is a number takes whole numbers in its range, and nothing that is none", async () => {
  const numbers = commandsOf(await program()).flatMap((command) =>
    command.options.filter(({ flags }) => flags.includes("<number>")).map((option) => ({ command, option })),
  );
  assert.ok(numbers.length >= 9);
  for (const { command, option } of numbers) {
    const parse = (text: string): unknown => option.parseArg?.(text, undefined) ?? text;
    const where = `${command.name()} ${option.long}`;
    assert.equal(parse("3"), 3, where);
    for (const text of ["x", "", "1.5", "1e3", "0x10", " 3", "3s", "NaN", "Infinity", "9".repeat(16), "-1", "0"]) {
      if (ACCEPTED[option.long ?? ""]?.includes(text)) assert.equal(parse(text), Number(text), where);
      else assert.throws(() => parse(text), { code: "commander.invalidArgument" }, `${where} ${JSON.stringify(text)}`);
    }
  }
});

test("a number, a date or a duration that is none is wrong usage, before anything is done", async () => {
  const known: [string[], RegExp][] = [
    [["run", "docs.ts", "--workers", "-1"], /'--workers <number>' argument '-1' is invalid\. Give a whole number of at least 1/],
    [["run", "docs.ts", "--workers", "0"], /at least 1/],
    [["enqueue", "echo", "--run-at", "-5"], /Give a date/],
    [["enqueue", "echo", "--delay", "-5"], /must be a duration/],
    [["claim", "echo", "--worker", "w", "--wait", "x"], /must be a duration/],
    [["claim", "echo", "--worker", "w", "--lease", "5"], /--lease must be a duration, got "5"/],
    [["recover", "--expired-for", "-1m"], /must be a duration/],
  ];
  const cases = selectFrom(known, 2);
  const ended = await Promise.all(cases.map(([args]) => place.run(args)));
  for (const [i, { code, stdout, stderr }] of ended.entries()) {
    const [args, says] = cases[i] as [string[], RegExp];
    assert.match(stderr, says, args.join(" "));
    assert.deepEqual([code, stdout], [2, ""], args.join(" "));
  }
  assert.equal(existsSync(join(place.folder, "work.db")), false, "and no database is made");
});

test("a command that reads or operates makes no database where there is none", async () => {
  const commands = [["status"], ["health"], ["unlock", "x"]];
  const missing = join(place.folder, "missing.db");
  for (const { code, stderr } of await Promise.all(commands.map((args) => place.run([...args, "--db", missing])))) {
    assert.equal(code, 2);
    assert.match(
      stderr,
      /error: There is no Holdfast database at .*missing\.db\. \[NO_DATABASE\]\nhint: {2}Give another with --db PATH/,
    );
  }
  assert.equal(existsSync(missing), false);
});

test("another program's database is left as it is by a command that reads", async () => {
  const path = join(place.folder, "app.db");
  const app = new DatabaseSync(path);
  app.exec("create table users (name text)");
  app.close();
  const before = await readFile(path);
  const { error } = await place.json<JsonError>(["status", "--db", path], 2);
  assert.equal(error.code, "NO_DATABASE");
  assert.deepEqual(await readFile(path), before);
});

test("what cannot be a database is refused, and --db may come before the command", async () => {
  const text = join(place.folder, "notes.txt");
  await writeFile(text, "These are my notes, and they are no database.\n".repeat(50));
  const { error } = await place.json<JsonError>(["--db", text, "status"], 2);
  assert.equal(error.code, "NOT_A_DATABASE");
  assert.match(error.message, /notes\.txt is not a SQLite database/);
});

test("without --db and HOLDFAST_DB it is .holdfast/work.db", async () => {
  const elsewhere = await place.run(["enqueue", "echo"], { env: { HOLDFAST_DB: undefined } });
  assert.equal(elsewhere.code, 0, elsewhere.stderr);
  assert.equal(existsSync(join(place.folder, ".holdfast/work.db")), true);
});
