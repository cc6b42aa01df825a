import assert from "node:assert/strict";
import { test } from "node:test";
import * as fc from "fast-check";
import type { LimitRule } from "../../src/core/limits/limit.ts";
import type { QueueSettings } from "../../src/core/jobs/claiming.ts";
import {
  type Declaration,
  declarationChanges,
  NO_SETTINGS,
  type SetRule,
  SettingsView,
  DeclarationCache,
} from "../../src/core/limits/settings.ts";

const PLAIN: QueueSettings = { events: false, keep: {} };
const RULE: LimitRule = { of: "job", position: 0, keyed: true, concurrency: 2, rate: null };

test("a declaration that repeats the current settings changes nothing, whatever its order", () => {
  const keep = { succeeded: { age: 1, count: 2 }, failed: { count: 0 } };
  const view = heard(NO_SETTINGS, declaration({ settings: { events: true, keep }, limits: [RULE] }));
  const again = { failed: { count: 0 }, succeeded: { count: 2, age: 1 } };
  const { changes, rules } = declarationChanges(
    view,
    declaration({ settings: { events: true, keep: again }, limits: [{ ...RULE }] }),
    false,
  );
  assert.deepEqual([changes, rules], [[], [1]]);
});

test("a queue without settings keeps everything and writes no events, and declaring so changes nothing", () => {
  assert.deepEqual(declarationChanges(NO_SETTINGS, declaration({ settings: PLAIN }), false).changes, []);
  assert.deepEqual(
    [NO_SETTINGS.recordsEvents("q"), NO_SETTINGS.keep("q", "failed"), NO_SETTINGS.isPaused("q")],
    [false, undefined, false],
  );
});

test("an old declaration applies only if no process has declared anything", () => {
  const old = declaration({ settings: { events: true, keep: {} }, limits: [{ ...RULE, concurrency: 9 }] });
  assert.equal(declarationChanges(NO_SETTINGS, old, true).changes.length, 2);
  const view = heard(NO_SETTINGS, declaration({ settings: { events: false, keep: { failed: {} } }, limits: [RULE] }));
  assert.deepEqual(declarationChanges(view, old, true), { rules: [1], changes: [] });
});

test("a definition with fewer limits drops its own, and the queue's if it may declare for the queue", () => {
  const ofQueue: LimitRule = { of: "queue", position: 0, keyed: false, concurrency: 5, rate: null };
  const view = heard(
    NO_SETTINGS,
    declaration({ settings: PLAIN, limits: [RULE, { ...RULE, position: 1 }, ofQueue] }),
    declaration({ name: "other", limits: [RULE] }),
  );
  assert.deepEqual(view.queueRules("q"), [3]);
  const dropped = (given: Partial<Declaration>) => declarationChanges(view, declaration(given), false).changes;
  assert.deepEqual(dropped({ limits: [RULE] }), [{ kind: "drop-rule", id: 2 }]);
  assert.deepEqual(dropped({ settings: PLAIN, limits: [RULE] }), [
    { kind: "drop-rule", id: 2 },
    { kind: "drop-rule", id: 3 },
  ]);
  assert.deepEqual(dropped({ queue: "another", limits: [] }), []);
});

test("the last declaration wins, and repeating it changes nothing", () => {
  const rule = fc.record({
    of: fc.constantFrom("job" as const, "queue" as const),
    keyed: fc.boolean(),
    concurrency: fc.option(fc.integer({ min: 1, max: 3 })),
    rate: fc.option(fc.integer({ min: 1, max: 3 }).map((starts) => ({ starts, per: 1_000 }))),
  });
  const said = fc.record({
    name: fc.constantFrom("a", "b"),
    settings: fc.option(
      fc.record({ events: fc.boolean(), keep: fc.constantFrom<QueueSettings["keep"]>({}, { failed: { count: 1 } }) }),
      {
        nil: undefined,
      },
    ),
    limits: fc.array(rule, { maxLength: 3 }).map((rules) => {
      const positions = { job: 0, queue: 0 };
      return rules.map((one): LimitRule => ({ ...one, position: positions[one.of]++ }));
    }),
  });
  fc.assert(
    fc.property(fc.array(said, { minLength: 1, maxLength: 5 }), (all) => {
      const words = all.map(({ settings, ...rest }) => declaration(settings === undefined ? rest : { ...rest, settings }));
      const view = heard(NO_SETTINGS, ...words);
      const last = words.at(-1) as Declaration;
      const { changes, rules } = declarationChanges(view, last, false);
      assert.deepEqual(changes, []);
      assert.deepEqual(
        rules.map((id) => view.rule(id)),
        last.limits,
      );
    }),
  );
});

test("a job passes its own limits, then those of its queue that it has not named", () => {
  const ofQueue: LimitRule = { of: "queue", position: 0, keyed: false, concurrency: 5, rate: null };
  const keyed: LimitRule = { ...ofQueue, position: 1, keyed: true };
  const view = heard(NO_SETTINGS, declaration({ settings: PLAIN, limits: [RULE, ofQueue, keyed] }));
  assert.deepEqual(view.rulesFor("q", [1, 2]), [1, 2]);
  assert.deepEqual(view.rulesFor("q", [1]), [1, 2], "a limit by key holds only for who gives one");
  assert.deepEqual(view.rulesFor("q"), [2]);
  assert.deepEqual(view.rulesFor("another"), []);
});

test("a declaration counts once, when it is committed", () => {
  const words = new DeclarationCache({ canDeclare: true });
  const one = declaration({});
  assert.equal(words.isOld(one), false);
  words.add(one, [7]);
  assert.deepEqual(words.rulesOf(one), [7]);
  words.forget();
  assert.deepEqual([words.rulesOf(one), words.isOld(one)], [undefined, false], "it was undone");
  words.add(one, [7]);
  words.committed();
  words.forget();
  assert.deepEqual([words.rulesOf(one), words.isOld(one), words.isDeclared(one)], [undefined, true, true]);
});

test("a user's transaction declares nothing, because its commit is not known", () => {
  const words = new DeclarationCache({ canDeclare: false });
  assert.deepEqual([words.isOld(declaration({})), words.isDeclared(declaration({}))], [true, false]);
});

function declaration(given: Partial<Declaration>): Declaration {
  return { queue: "q", name: "job", limits: [], ...given };
}

/** What a store makes of it. */
function heard(view: SettingsView, ...words: Declaration[]): SettingsView {
  const queues = new Map(view.queues);
  const rules = new Map(view.rules);
  for (const word of words) {
    const { changes } = declarationChanges(new SettingsView(queues.values(), rules.values()), word, false);
    for (const change of changes) {
      if (change.kind === "set-queue") {
        const { name, events, keep } = change;
        queues.set(name, { name, paused: false, events, keep: keep ?? {} });
      } else if (change.kind === "add-rule") {
        const { queue, job, rule } = change;
        rules.set(rules.size + 1, { id: rules.size + 1, queue, job, rule });
      } else {
        const known = rules.get(change.id) as SetRule;
        const none = { ...known.rule, concurrency: null, rate: null };
        rules.set(change.id, { ...known, rule: change.kind === "set-rule" ? change.rule : none });
      }
    }
  }
  return new SettingsView(queues.values(), rules.values());
}
