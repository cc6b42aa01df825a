import assert from "node:assert/strict";

export interface ParsedFamily {
  help: string;
  type: string;
  samples: { labels: Record<string, string>; value: number; suffix: string }[];
}

const NAME = "[a-zA-Z_:][a-zA-Z0-9_:]*";
const LABEL = "[a-zA-Z_][a-zA-Z0-9_]*";
const VALUE = "[+-]?(?:\\d+(?:\\.\\d+)?(?:e[+-]?\\d+)?|Inf)|NaN";
const COMMENT = new RegExp(`^# (HELP|TYPE) (${NAME}) (.*)$`, "s");
const SAMPLE = new RegExp(`^(${NAME})(?:\\{(.*)\\})? (${VALUE})$`, "s");

/**
 * Prometheus' text format 0.0.4, and stricter than Prometheus: of each family HELP, then TYPE, then its samples, in one piece;
 * no blank lines, no comments, no timestamps, no sample twice, each line ended.
 */
export function parseExposition(text: string): Map<string, ParsedFamily> {
  assert.ok(text === "" || text.endsWith("\n"), "the last line is ended");
  const families = new Map<string, ParsedFamily>();
  let last: { name: string; family: ParsedFamily } | null = null;
  let seen = new Set<string>();
  for (const line of text.split("\n").slice(0, -1)) {
    const [, what, about = "", rest = ""] = COMMENT.exec(line) ?? [];
    if (what === "HELP") {
      assert.ok(!families.has(about), `${about} is in one piece`);
      assert.match(rest, /^(?:[^\\]|\\[\\n])*$/, line);
      last = { name: about, family: { help: unescape(rest), type: "", samples: [] } };
      families.set(about, last.family);
      seen = new Set();
    } else if (what === "TYPE") {
      assert.ok(last?.name === about && last.family.type === "" && last.family.samples.length === 0, line);
      assert.match(rest, /^(counter|gauge|histogram)$/);
      last.family.type = rest;
    } else {
      const [, name = "", labels = "", value = ""] = SAMPLE.exec(line) ?? assert.fail(`no sample: ${line}`);
      assert.ok(last !== null && name.startsWith(last.name) && last.family.type !== "", line);
      const suffix = name.slice(last.name.length);
      assert.match(suffix, last.family.type === "histogram" ? /^_(bucket|sum|count)$/ : /^$/, line);
      assert.ok(!seen.has(suffix + labels), `twice: ${line}`);
      seen.add(suffix + labels);
      last.family.samples.push({ labels: labelsOf(labels), value: Number(value.replace("Inf", "Infinity")), suffix });
    }
  }
  for (const [name, { samples }] of families) assert.ok(samples.length > 0, `${name} has samples`);
  return families;
}

function labelsOf(text: string): Record<string, string> {
  const labels: Record<string, string> = {};
  const one = new RegExp(`(${LABEL})="((?:[^"\\\\\\n]|\\\\["\\\\n])*)"(,|$)`, "y");
  while (one.lastIndex < text.length) {
    const at = one.lastIndex;
    const [, name = "", value = "", end] = one.exec(text) ?? assert.fail(`no label at ${at}: ${text}`);
    assert.ok(!(name in labels), `${name} twice`);
    assert.ok(end === "" || one.lastIndex < text.length, `a comma at the end: ${text}`);
    labels[name] = unescape(value);
  }
  return labels;
}

function unescape(text: string): string {
  return text.replace(/\\(.)/g, (_, letter: string) => (letter === "n" ? "\n" : letter));
}
