import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { globSync, mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";
import { pathToFileURL } from "node:url";
import { firstOf } from "../selection.ts";
import { noServer, type PostgresServer, startServer } from "../postgres/server.ts";
import { pages, ROOT, type Snippet, snippets } from "./pages.ts";

/*
 * Every ```ts block of the docs is checked by the compiler, and run: those of the README, and in `npm test` every fifth of the others.
 * - A block is a module. "holdfast" is src/index.ts; its working directory is an empty folder of its own.
 * - `// jobs.ts` as its first line names it, and later blocks of the page may import "./jobs.ts".
 * - `// → text` is a line that it prints. Where there are such comments, it prints these lines and no others, in any order.
 * - postgres://localhost/shop stands for an empty database of its own, on a real server; without one the block is skipped.
 * - ```ts no-run: a signature to read. It is neither run nor checked, and its first line is a comment that says why.
 */

const RESOLVE = pathToFileURL(join(ROOT, "test/docs/resolve.ts")).href;
const folder = mkdtempSync(join(tmpdir(), "holdfast-docs-"));
symlinkSync(join(ROOT, "node_modules"), join(folder, "node_modules"), "junction");
after(() => rmSync(folder, { recursive: true, force: true }));

const ON_SERVER = "postgres://localhost/shop";

interface Example {
  where: string;
  folder: string;
  file: string;
  printed: string[];
  /** It, or a block that it may import, needs a server. */
  onServer: boolean;
  /** Why it is not run, or false. */
  skip: string | false;
}

const examples = pages()
  .flatMap((page) => examplesOf(snippets(page)))
  .map((example, turn): Example => {
    const { where, onServer } = example;
    return Object.assign(example, {
      skip: (onServer && noServer) || (!where.startsWith("README.md") && (firstOf(5, turn).skip ?? false)),
    });
  });

describe("every example in the docs", { concurrency: 2 }, () => {
  let server: PostgresServer | undefined;
  before(async () => {
    if (noServer) return;
    server = await startServer();
    for (const { folder, onServer, skip } of examples) if (onServer && !skip) moveIn(folder, await server.createDatabase());
  });
  after(() => server?.close());

  test("is there", () => {
    assert.ok(examples.length >= 7, `${examples.length} found`);
    assert.ok(examples.some(({ where }) => where.startsWith("README.md")));
    assert.ok(examples.some(({ onServer }) => onServer));
  });

  test("has the types it uses", async () => {
    const { code, output } = await run(["node_modules/typescript/bin/tsc", "-p", typeProject()], ROOT);
    assert.equal(code, 0, output.replaceAll(folder, ""));
  });

  for (const { where, folder, file, printed, skip } of examples) {
    test(`${where} runs, and ends by itself`, { skip }, async () => {
      const { code, stdout, output } = await run(["--import", RESOLVE, file], folder);
      assert.equal(code, 0, output);
      if (printed.length > 0) assert.deepEqual(stdout.trimEnd().split("\n").sort(), printed.toSorted());
    });
  }
});

test("a block that is not run says why", () => {
  for (const { where, info, code } of pages().flatMap(snippets)) {
    if (/^(ts|typescript|js|javascript)\b/.test(info)) assert.ok(info === "ts" || info === "ts no-run", `${where}: ${info}`);
    if (info === "ts no-run") assert.match(code, /^\/\/ \S/, where);
  }
});

/** Each in a folder of its own, with the named ones of its page before it. */
function examplesOf(blocks: Snippet[]): Omit<Example, "skip">[] {
  const named = new Map<string, string>();
  return blocks
    .filter(({ info }) => info === "ts")
    .map(({ where, code }) => {
      const name = /^\/\/ ([\w-]+\.ts)\n/.exec(code)?.[1];
      const own = join(folder, where.replaceAll(/\W+/g, "-"));
      mkdirSync(own);
      writeFileSync(join(own, "package.json"), '{ "type": "module" }\n');
      for (const [file, text] of named) writeFileSync(join(own, file), text);
      if (name !== undefined) named.set(name, code);
      const file = join(own, name ?? "example.ts");
      writeFileSync(file, code);
      const printed = [...code.matchAll(/\/\/ → (.*)$/gm)].map(([, line]) => line as string);
      return { where, folder: own, file, printed, onServer: [code, ...named.values()].some((text) => text.includes(ON_SERVER)) };
    });
}

/** The address in the text becomes that of a database that is there. */
function moveIn(folder: string, url: string): void {
  for (const name of globSync("*.ts", { cwd: folder })) {
    const file = join(folder, name);
    writeFileSync(file, readFileSync(file, "utf8").replaceAll(ON_SERVER, url));
  }
}

function typeProject(): string {
  const file = join(folder, "tsconfig.json");
  const project = {
    extends: join(ROOT, "tsconfig.json"),
    compilerOptions: {
      typeRoots: [join(ROOT, "node_modules/@types")],
      paths: {
        holdfast: [join(ROOT, "src/index.ts")],
        "holdfast/testing": [join(ROOT, "src/testing/index.ts")],
        "holdfast/server": [join(ROOT, "src/server/index.ts")],
      },
    },
    include: [],
    files: examples.map(({ file }) => file),
  };
  writeFileSync(file, JSON.stringify(project));
  return file;
}

function run(args: string[], cwd: string): Promise<{ code: number | null; stdout: string; output: string }> {
  return new Promise((resolve) => {
    const env = { ...process.env, NODE_TEST_CONTEXT: undefined, FORCE_COLOR: undefined };
    const child = execFile(process.execPath, args, { cwd, env, timeout: 60_000 }, (error, stdout, stderr) => {
      resolve({ code: child.exitCode, stdout, output: `${stdout}${stderr}${error?.killed ? "it did not end by itself" : ""}` });
    });
  });
}
