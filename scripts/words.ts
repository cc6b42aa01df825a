/**
 * Fails on words that hide the actor of a sentence, in code, docs, tests and examples: part of `npm run lint`. A line that needs
 * one (the Unix user of that name) carries the marker `ruled-out-word-ok`.
 */
import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";

const MARKER = "ruled-out-word-ok";
const RULED_OUT =
  /\b(somebody|nobody|whoever|is told|told of|goes on|is gone on|set aside|is no (?:duration|path|number|text|boolean)|he is|himself)\b/i; // ruled-out-word-ok
const FOLDERS = ["src", "docs", "test", "bench", "scripts", "examples/**/*.ts", "README.md", "CONTRIBUTING.md", "CHANGELOG.md"];

const files = execFileSync("git", ["ls-files", ...FOLDERS], { encoding: "utf8" }).split("\n");
const found = files
  .filter((file) => /\.(ts|md)$/.test(file))
  .flatMap((file) =>
    readFileSync(file, "utf8")
      .split("\n")
      .flatMap((line, i) => {
        const [word] = line.includes(MARKER) ? [] : (RULED_OUT.exec(line) ?? []);
        return word === undefined ? [] : [`${file}:${i + 1}: "${word}"`];
      }),
  );
if (found.length > 0) {
  console.error(`${found.join("\n")}\nName the actor instead: worker, process, caller, handler, operator.`);
  process.exitCode = 1;
}
