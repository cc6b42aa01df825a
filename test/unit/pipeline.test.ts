import assert from "node:assert/strict";
import { describe, test } from "node:test";
import * as fc from "fast-check";
import { HoldfastError } from "../../src/core/text/errors.ts";
import { secret } from "../../src/core/pipelines/work.ts";
import {
  describePipeline,
  editedStages,
  type Pipeline,
  pipeline,
  type PipelineDescription,
  pipelineDifferences,
  pipelineHash,
  pipelineOf,
} from "../../src/core/pipelines/pipeline.ts";
import { files, items } from "../../src/core/pipelines/source.ts";
import { groupOf, stageEstimate, stageKey } from "../../src/core/pipelines/stage.ts";
import { MAX_ID_BYTES } from "../../src/core/pipelines/work.ts";

const nothing = () => null;
const docs = pipeline("docs").source(files("docs/**/*.md"));
/** Any call, as plain JavaScript makes it. */
const loose = docs as unknown as Record<"stage" | "expand" | "gather", (name: unknown, o: unknown, run?: unknown) => Pipeline>;

describe("a pipeline", () => {
  test("a pipeline is a value: each call returns a new one and leaves the old unchanged", () => {
    const parsed = docs.stage("parse", {}, nothing);
    const one = parsed.stage("one", {}, nothing);
    const two = parsed.stage("two", {}, nothing);
    assert.deepEqual(names(docs), []);
    assert.deepEqual(names(parsed), ["parse"]);
    assert.deepEqual(names(one), ["parse", "one"]);
    assert.deepEqual(names(two), ["parse", "two"]);
    assert.ok(Object.isFrozen(one) && Object.isFrozen(pipelineOf(one).stages) && Object.isFrozen(pipelineOf(one).stages[0]));
  });

  test("a pipeline does not change with the objects that it was made of", () => {
    const key = { model: "small" };
    const uses: "parse"[] = ["parse"];
    const made = docs.stage("parse", { key }, nothing).stage("next", { uses }, nothing);
    const before = pipelineHash(described(made));
    key.model = "large";
    uses.pop();
    assert.equal(pipelineHash(described(made)), before);
  });

  test("a pipeline has its budget, failure limit and module, or none", () => {
    const { budget, maxFailures, module } = pipelineOf(
      pipeline("p", { budget: { usd: 5 }, maxFailures: 0, module: "file:///p.ts" }).source(files("*")),
    );
    assert.deepEqual(
      { budget, maxFailures, module },
      { budget: { micros: 5_000_000, tokens: null }, maxFailures: 0, module: "file:///p.ts" },
    );
    const bare = pipelineOf(docs);
    assert.deepEqual([bare.budget, bare.maxFailures, bare.module], [{ micros: null, tokens: null }, null, null]);
  });

  test("stages have the defaults of jobs", () => {
    const [stage] = pipelineOf(docs.stage("parse", {}, nothing)).stages;
    assert.deepEqual(
      [stage?.version, stage?.lease, stage?.policy.attempts, stage?.policy.timeout, stage?.reuse, stage?.isolate],
      [1, 30_000, 3, 3_600_000, "target", "none"],
    );
    assert.deepEqual([stage?.key, stage?.match, stage?.by, stage?.estimate, stage?.partial], [null, null, null, null, false]);
  });

  test("a pipeline is distinguished from every other value", () => {
    for (const wrong of [null, undefined, {}, "docs", { definition: {} }, pipeline("docs")]) {
      assert.throws(() => pipelineOf(wrong), { code: "NOT_A_PIPELINE" });
    }
  });
});

describe("a pipeline is refused, in plain words,", () => {
  const refused: [string, () => unknown, string, RegExp][] = [
    ["with an empty name", () => pipeline(""), "NAME_INVALID", /pipeline's name/],
    ["with spaces around its name", () => pipeline(" docs"), "NAME_INVALID", /" docs"/],
    ["with a name that is not a string", () => pipeline(5 as never), "NAME_INVALID", /5/],
    ["with an unknown option", () => pipeline("p", { bugdet: {} } as never), "OPTION_INVALID", /bugdet/],
    [
      "with a budget that cannot be counted",
      () => pipeline("p", { budget: { usd: -1 } }),
      "COST_INVALID",
      /budget.*usd must be .*, got -1/,
    ],
    ["with half a failure", () => pipeline("p", { maxFailures: 0.5 }), "NUMBER_INVALID", /maxFailures/],
    ["with a module that is a path", () => pipeline("p", { module: "/p.ts" }), "OPTION_INVALID", /module/],
    ["without a source", () => pipeline("p").source(undefined as never), "SOURCE_INVALID", /not a source/],
    ["with a source that is a glob", () => pipeline("p").source("**" as never), "SOURCE_INVALID", /not a source/],
    ["with no glob", () => files([]), "SOURCE_INVALID", /needs a glob/],
    ["with an empty glob", () => files(["a", " "]), "SOURCE_INVALID", /" "/],
    ["with one thing to ignore", () => files("a", { ignore: "b" as never }), "SOURCE_INVALID", /ignore/],
    ["with an unknown option of files", () => files("a", { cwd: "." } as never), "OPTION_INVALID", /cwd/],
    ["with half a snapshot", () => files("a", { snapshot: "half" as never }), "OPTION_INVALID", /snapshot/],
    ["with items that are no function", () => items([] as never, { id: String }), "SOURCE_INVALID", /must be a function/],
    ["with items without ids", () => items(() => [], {} as never), "SOURCE_INVALID", /`id`/],
    [
      "with a version that is a number",
      () => items(() => [], { id: String, version: 1 as never }),
      "SOURCE_INVALID",
      /`version`/,
    ],
    ["with a stage of no name", () => loose.stage("", {}, nothing), "NAME_INVALID", /stage's name/],
    ["with a stage that is a path", () => loose.stage("a/b", {}, nothing), "NAME_INVALID", /"a\/b"/],
    ["with a stage in spaces", () => loose.stage("a ", {}, nothing), "NAME_INVALID", /"a "/],
    ["with a stage that no object can hold", () => loose.stage("__proto__", {}, nothing), "NAME_INVALID", /__proto__/],
    ["with a line break in a name", () => loose.stage("a\nb", {}, nothing), "NAME_INVALID", /a\\nb/],
    ["with a stage twice", () => docs.stage("a", {}, nothing).expand("a", {}, () => []), "STAGE_TWICE", /"docs".*"a"/],
    ["with a stage without a handler", () => loose.stage("a", {}), "OPTION_INVALID", /handler of stage "a"/],
    ["with a stage without options", () => loose.stage("a", nothing, nothing), "OPTION_INVALID", /"a"/],
    ["with options that are null", () => loose.stage("a", null, nothing), "OPTION_INVALID", /"a"/],
    ["with an option that a stage does not know", () => loose.stage("a", { by: String }, nothing), "OPTION_INVALID", /"by"/],
    ["with `uses` of an expand", () => loose.expand("a", { uses: [] }, nothing), "OPTION_INVALID", /"uses"/],
    ["with `match` of a gather", () => loose.gather("a", { match: "*" }, nothing), "OPTION_INVALID", /"match"/],
    ["with `by` that is a name", () => loose.gather("a", { by: "dir" }, nothing), "OPTION_INVALID", /`by`/],
    ["with `partial` that is a number", () => loose.gather("a", { partial: 1 }, nothing), "OPTION_INVALID", /`partial`/],
    ["with an empty `match`", () => loose.stage("a", { match: "" }, nothing), "OPTION_INVALID", /`match`/],
    ["with a pattern for `match`", () => loose.stage("a", { match: /x/ }, nothing), "OPTION_INVALID", /`match`/],
    ["with `uses` that is a text", () => loose.stage("a", { uses: "b" }, nothing), "OPTION_INVALID", /`uses`/],
    ["with a use of nothing", () => loose.stage("a", { uses: ["b"] }, nothing), "STAGE_UNKNOWN", /no such stage before/],
    ["with a use of itself", () => loose.stage("a", { uses: ["a"] }, nothing), "STAGE_UNKNOWN", /no such stage before/],
    ["with an odd `reuse`", () => loose.stage("a", { reuse: "name" }, nothing), "OPTION_INVALID", /reuse/],
    ["with an odd `isolate`", () => loose.stage("a", { isolate: true }, nothing), "OPTION_INVALID", /isolate/],
    ["with an estimate that is a number", () => loose.stage("a", { estimate: 1 }, nothing), "COST_INVALID", /estimate/],
    ["with `remove` that is true", () => loose.stage("a", { remove: true }, nothing), "OPTION_INVALID", /remove/],
    ["with a version of half", () => loose.stage("a", { version: 1.5 }, nothing), "NUMBER_INVALID", /version of stage "a"/],
    ["with a timeout of none", () => loose.stage("a", { timeout: 0 }, nothing), "DURATION_INVALID", /timeout of stage "a"/],
    [
      "with a limit of nothing",
      () => loose.stage("a", { limit: {} }, nothing),
      "OPTION_INVALID",
      /^`limit` of stage "a" has neither/,
    ],
    ["with a key of null", () => loose.stage("a", { key: null }, nothing), "KEY_INVALID", /stage "a"/],
    ["with a process but no module", () => docs.stage("a", { isolate: "process" }, nothing), "MODULE_NEEDED", /"docs"/],
  ];
  for (const [what, act, code, says] of refused) {
    test(what, () => {
      assert.throws(act, (error) => {
        assert.ok(error instanceof HoldfastError, String(error));
        assert.equal(error.code, code);
        assert.match(error.message, says);
        return error.hint !== "";
      });
    });
  }

  test("a part of a key that cannot be hashed is rejected by name", () => {
    assert.throws(() => docs.stage("a", { key: { model: { temperature: Number.NaN } } }, nothing), {
      code: "KEY_INVALID",
      message: /stage "a": key\.model\.temperature is NaN/,
    });
  });
});

describe("a stage may use", () => {
  const parsed = docs.stage("parse", {}, nothing);

  test("a stage may use earlier stages, also those before an expand", () => {
    const made = parsed.expand("pages", {}, () => []).stage("render", { uses: ["parse"] }, nothing);
    assert.deepEqual(pipelineOf(made).stages[2]?.uses, ["parse"]);
  });

  test("a stage may not use an expand, whose outputs are targets", () => {
    const made = parsed.expand("pages", {}, () => []);
    assert.throws(() => made.stage("a", { uses: ["pages"] as never }, nothing), {
      code: "STAGE_UNKNOWN",
      message: /targets of their own/,
      hint: /parse/,
    });
  });

  test("a stage after a gather may use the gather, but nothing before it", () => {
    const made = parsed.gather("all", {}, nothing);
    assert.ok(made.stage("a", { uses: ["all"] }, nothing));
    assert.throws(() => made.stage("a", { uses: ["parse"] as never }, nothing), {
      code: "STAGE_UNKNOWN",
      message: /before a gather/,
      hint: /all/,
    });
  });

  test("a stage may use each stage once", () => {
    assert.throws(() => parsed.stage("a", { uses: ["parse", "parse"] }, nothing), { code: "OPTION_INVALID", message: /twice/ });
  });
});

describe("a gather", () => {
  const one = docs.gather("all", {}, nothing);

  test("a gather after one that made one target of all is rejected", () => {
    for (const made of [one, one.stage("polish", {}, nothing)]) {
      assert.throws(() => made.gather("again", {}, nothing), { code: "GATHER_OF_ONE", hint: /stage|by/ });
      assert.throws(() => made.gather("again", { by: () => "a" }, nothing), { code: "GATHER_OF_ONE" });
    }
  });

  test("a gather after one by groups, or after an expand, is accepted", () => {
    assert.ok(docs.gather("groups", { by: ({ path }) => path }, nothing).gather("all", {}, nothing));
    assert.ok(one.expand("parts", {}, () => []).gather("again", {}, nothing));
  });

  test("a gather has a group for each target, by id", () => {
    const [stage] = pipelineOf(docs.gather("groups", { by: ({ id }) => id.slice(0, 1) }, nothing)).stages;
    assert.ok(stage);
    assert.equal(groupOf(stage, { id: "abc" }, null), "a");
    assert.throws(() => groupOf(stage, { id: "" }, null), {
      code: "TARGET_ID_INVALID",
      message: /`by` of stage "groups" is "", and an id has at least one character/,
    });
    assert.throws(() => groupOf(stage, null, null), { code: "GROUP_INVALID", message: /`by` of stage "groups" threw/ });
    const [all] = pipelineOf(one).stages;
    assert.equal(all && groupOf(all, { id: "abc" }, null), null);
  });
});

describe("a group's id", () => {
  const [stage] = pipelineOf(docs.gather("groups", { by: ({ id }) => id }, nothing)).stages;
  const group = (id: unknown) => stage && groupOf(stage, { id }, null);

  test("a group's id may be anything that a target's id may be", () => {
    for (const id of ["x".repeat(MAX_ID_BYTES), "two\nlines", "é/ü", " "]) assert.equal(group(id), id);
  });

  test("an invalid group id is rejected with the reason and valid forms", () => {
    const refused = { code: "TARGET_ID_INVALID", hint: /Give a string of 1 to 2000 bytes/ };
    assert.throws(() => group("ä".repeat(1_001)), { ...refused, message: /is a text of 2002 bytes, and an id may have 2000\./ });
    assert.throws(() => group(7), { ...refused, message: /is 7, and an id is a text\./ });
    assert.throws(() => group(undefined), { ...refused, message: /is undefined, and an id is a text\./ });
    assert.throws(() => group("\ud800"), { ...refused, message: /half of a character/ });
    assert.throws(() => group("a\u001fb"), { ...refused, message: /does not hold U\+001F/ });
    assert.throws(() => group("a\0b"), { code: "TEXT_INVALID", message: /`by` of stage "groups"/ });
  });
});

describe("what a stage says about a target", () => {
  const [stage, plain] = pipelineOf(
    pipeline("mails")
      .source(items(() => [{ size: 1 }], { id: String }))
      .stage("sum", { key: ({ input }) => ({ size: input.size }), estimate: ({ input }) => ({ tokens: input.size }) }, nothing)
      .stage("plain", { key: { b: 1, a: 2 } }, nothing),
  ).stages;
  assert.ok(stage && plain);

  test("a stage's key of a target is canonical text", () => {
    assert.equal(stageKey(stage, { target: null, input: { size: 3 } }), '{"size":3}');
    assert.equal(stageKey(plain, { target: null, input: null }), '{"a":2,"b":1}');
    assert.throws(() => stageKey(stage, { target: null, input: { size: 3n } }), {
      message: /stage "sum": key\.size is a bigint/,
    });
    assert.throws(() => stageKey(stage, { target: null, input: null }), { code: "KEY_INVALID", message: /`key` .* threw/ });
  });

  test("a stage's estimate of a target is in whole units, or absent", () => {
    assert.deepEqual(stageEstimate(stage, { target: null, input: { size: 3 } }), { micros: 0, tokens: 3 });
    assert.equal(stageEstimate(plain, { target: null, input: null }), null);
    assert.throws(() => stageEstimate(stage, { target: null, input: { size: -1 } }), { code: "COST_INVALID" });
    assert.throws(() => stageEstimate(stage, { target: null, input: null }), { code: "COST_INVALID", message: /threw/ });
  });
});

describe("the description of a pipeline", () => {
  test("a description is data, and has the same hash after a JSON round trip", () => {
    const description = described(make());
    const copy = JSON.parse(JSON.stringify(description)) as PipelineDescription;
    assert.deepEqual(copy, description);
    assert.equal(pipelineHash(copy), pipelineHash(description));
    assert.deepEqual(description.stages[1], {
      name: "sum",
      kind: "stage",
      version: 1,
      key: '{"model":"small","prompt":"Sum up."}',
      uses: ["parse"],
      match: "**/*.md",
      reuse: "target",
      by: null,
      partial: false,
    });
  });

  test("a description contains no secrets", () => {
    const description = described(make({ token: secret("hunter2") }));
    assert.ok(!JSON.stringify(description).includes("hunter2"));
    const [change] = pipelineDifferences(description, described(make({ token: secret("hunter3") })));
    assert.match(change ?? "", /^key\.token of stage "sum" is "\[secret \w{12}\]", it was "\[secret \w{12}\]"\.$/);
  });

  test("a description does not change with run options or costs", () => {
    const run = {
      retry: { attempts: 9 },
      timeout: "5m",
      lease: "1m",
      crashes: 1,
      concurrency: 2,
      limit: { rate: "1/s" },
    } as const;
    const other = pipeline("docs", { budget: { usd: 1 }, maxFailures: 3, module: "file:///x" })
      .source(files(["docs/**/*.md"]))
      .stage("parse", { ...run, estimate: () => ({ usd: 1 }), remove: () => {}, isolate: "process" }, nothing);
    assert.equal(pipelineHash(described(other)), pipelineHash(described(docs.stage("parse", {}, nothing))));
  });

  test("a description names what differs", () => {
    assert.deepEqual(differences(make()), []);
    assert.deepEqual(differences(make(undefined, 2)), ['version of stage "sum" is 2, it was 1.']);
    assert.deepEqual(differences(make({ prompt: "Sum up!", model: "small" })), [
      'key.prompt of stage "sum" is "Sum up!", it was "Sum up.".',
    ]);
    assert.deepEqual(differences(make(() => "k")).length, 1);
    assert.match(differences(make(() => "k"))[0] ?? "", /^key of stage "sum" is a function, it was \{/);
    assert.deepEqual(differences(make().stage("more", {}, nothing)), ['The stage "more" is new.']);
    assert.deepEqual(differences(docs.stage("parse", {}, nothing)), ['The stage "sum" is gone.']);
    assert.deepEqual(
      differences(docs.stage("b", {}, nothing).stage("a", {}, nothing), docs.stage("a", {}, nothing).stage("b", {}, nothing)),
      ["The order of the stages is b, a, it was a, b."],
    );
    const elsewhere = pipeline("papers").source(files(["docs/**/*.md", "x"], { root: "/srv" }));
    assert.deepEqual(differences(elsewhere, docs), [
      'The pipeline is called "papers", it was "docs".',
      'source.globs[1] is "x", it was not there.',
      'source.root is "/srv", it was not there.',
    ]);
    const listed = pipeline("docs").source(items(() => [], { id: String, cursor: String }));
    assert.ok(differences(listed, docs).includes("source.cursor is a function, it was not there."));
  });

  const a = docs.stage("a", {}, nothing);
  const changes: [string, unknown, unknown, string][] = [
    ["a glob", a.stage("b", {}, nothing), a.stage("b", { match: "*" }, nothing), 'match of stage "b" is "*", it was not there.'],
    [
      "a predicate",
      a.stage("b", { match: "*" }, nothing),
      a.stage("b", { match: () => true }, nothing),
      'match of stage "b" is a function, it was "*".',
    ],
    [
      "what is used",
      a.stage("b", {}, nothing),
      a.stage("b", { uses: ["a"] }, nothing),
      'uses[0] of stage "b" is "a", it was not there.',
    ],
    [
      "what is reused",
      a.stage("b", {}, nothing),
      a.stage("b", { reuse: "bytes" }, nothing),
      'reuse of stage "b" is "bytes", it was "target".',
    ],
    [
      "groups",
      a.gather("b", {}, nothing),
      a.gather("b", { by: () => "g" }, nothing),
      'by of stage "b" is a function, it was not there.',
    ],
    [
      "what may be missing",
      a.gather("b", {}, nothing),
      a.gather("b", { partial: true }, nothing),
      'partial of stage "b" is true, it was false.',
    ],
    ["the kind", a.stage("b", {}, nothing), a.gather("b", {}, nothing), 'kind of stage "b" is "gather", it was "stage".'],
    ["a key", a.stage("b", {}, nothing), a.stage("b", { key: 5 }, nothing), 'key of stage "b" is 5, it was not there.'],
  ];
  for (const [what, before, after, says] of changes) {
    test(`a description changes with ${what}, and says so`, () => {
      assert.deepEqual(differences(after, before), [says]);
      assert.notEqual(pipelineHash(described(before)), pipelineHash(described(after)));
    });
  }

  test("a description names a difference exactly when its hash differs", () => {
    fc.assert(
      fc.property(pipelines(), pipelines(), (a, b) => {
        const [before, after] = [described(a), described(b)];
        assert.equal(pipelineHash(before) === pipelineHash(after), pipelineDifferences(before, after).length === 0);
      }),
      { numRuns: 1_000 },
    );
  });

  test("edited code under an unchanged version is a warning, not a difference", () => {
    const before = described(docs.stage("a", {}, () => 1).stage("b", {}, () => 1));
    const after = described(docs.stage("a", {}, () => 2).stage("b", { version: 2 }, () => 2));
    assert.deepEqual(editedStages(before, after), ["a"]);
    assert.deepEqual(editedStages(before, before), []);
    assert.deepEqual(pipelineDifferences(before, after), ['version of stage "b" is 2, it was 1.']);
    assert.deepEqual(editedStages(described(docs), after), [], "a new stage is not edited");
  });
});

function pipelines(): fc.Arbitrary<unknown> {
  const stage = fc.record({
    name: fc.constantFrom("a", "b"),
    kind: fc.constantFrom("stage", "expand", "gather"),
    version: fc.constantFrom(1, 2),
    key: fc.constantFrom(undefined, "k", { k: 1 }, { k: { function: true } }, { function: true }, () => "k"),
    match: fc.constantFrom(undefined, "*", "true", () => true),
    by: fc.constantFrom(undefined, () => "g"),
    partial: fc.boolean(),
    reuse: fc.constantFrom("target", "bytes"),
  });
  const source = fc.constantFrom(
    files("a"),
    files(["a", "b"]),
    files("a", { ignore: ["b"] }),
    items(() => [], { id: String }),
    items(() => [], { id: String, version: String }),
  );
  return fc
    .tuple(fc.constantFrom("p", "q"), source, fc.uniqueArray(stage, { maxLength: 2, selector: ({ name }) => name }))
    .map(([name, source, stages]) => {
      let made = pipeline(name).source(source as never) as unknown as typeof loose;
      for (const { name, kind, version, key, reuse, match, by, partial } of stages) {
        const shared = { version, reuse, ...(key === undefined ? {} : { key }) };
        if (kind === "stage") made = made.stage(name, { ...shared, ...(match && { match }) }, nothing) as unknown as typeof loose;
        else if (kind === "expand") made = made.expand(name, shared, nothing) as unknown as typeof loose;
        else if (stages[0]?.kind !== "gather" || stages[0].name === name || stages[0].by !== undefined)
          made = made.gather(name, { ...shared, partial, ...(by && { by }) }, nothing) as unknown as typeof loose;
      }
      return made;
    });
}

function make(key: object | (() => string) = { prompt: "Sum up.", model: "small" }, version = 1) {
  return docs.stage("parse", {}, nothing).stage("sum", { key, version, uses: ["parse"], match: "**/*.md" }, nothing);
}

function differences(after: unknown, before: unknown = make()): string[] {
  return pipelineDifferences(described(before), described(after));
}

function described(made: unknown): PipelineDescription {
  return describePipeline(pipelineOf(made));
}

function names(made: unknown): string[] {
  return pipelineOf(made).stages.map(({ name }) => name);
}
