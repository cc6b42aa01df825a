import assert from "node:assert/strict";
import { DatabaseSync } from "node:sqlite";
import { join } from "node:path";
import { test } from "node:test";
import { SEEDS } from "../seeds.ts";
import { LONG } from "../selection.ts";
import { Shelf } from "./shelf.ts";

const ROUNDS = LONG ? 5_000 : 100;

for (const seed of SEEDS)
  test(`while processes store, reference and forget the same artifacts, and sweepers without mercy are killed: nothing referenced is ever missing (HOLDFAST_SEED=${seed})`, async (t) => {
    const shelf = new Shelf(t);
    const db = new DatabaseSync(join(shelf.base, "refs.db"));
    t.after(() => db.close());
    db.exec("pragma journal_mode = wal; create table refs (owner integer, hash text)");
    const told = { rounds: ROUNDS, kinds: 6 };
    const sweeper = shelf.start("racer", { ...told, role: "sweeper", seed: 0 });
    const mortal = ["sweep:trashed", "sweep:checked", "sweep:removed"].map((point) =>
      shelf.start("racer", { ...told, role: "sweeper", seed: 0, point }),
    );
    await sweeper.next("sweeping");
    const putters = [1, 2].map((i) => shelf.start("racer", { ...told, role: "putter", seed: (seed % 1_000_000) + i }));
    const ends = await Promise.all(putters.map((putter) => putter.next("done")));
    for (const child of mortal) assert.equal((await child.end()).signal, "SIGKILL", child.stderr);
    sweeper.send({ type: "stop" });
    const { removed, restored } = await sweeper.next("done");

    const artifacts = await shelf.open();
    const referenced = db.prepare("select distinct hash from refs").all();
    for (const row of referenced) await artifacts.read(row["hash"] as string);
    assert.equal(new Set(ends.flatMap(({ own }) => own as string[])).size, referenced.length);
    assert.ok((removed as number) > ROUNDS / 10, `only ${String(removed)} were removed, so nothing was tried`);
    assert.deepEqual(shelf.unfinished(), []);
    t.diagnostic(
      `${String(removed)} removed, ${String(restored)} restored, ${ends.map(({ refused }) => refused).join(", ")} refused`,
    );
  });
