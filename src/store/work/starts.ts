import { howMany, settle } from "../../core/pipelines/budget.ts";
import { type Amount, NOTHING } from "../../core/pipelines/cost.ts";
import type { Beginning } from "../work.ts";
import { type Account, isSame } from "./books.ts";
import type { Item } from "./rows.ts";

/** One of those that want to start. */
export interface Start {
  item: Item;
  estimate: Amount;
}

export interface Begun {
  /** One for each. */
  answers: Beginning[];
  /** What is to be set aside for whom from now on, where that is another amount than it was. */
  aside: { item: Item; wanted: Amount }[];
  /** Nothing more of this build is to start: its queue rests. */
  stops: boolean;
}

/** Which of these attempts, all of one build, may start, in their order. It is written into the account. */
export function begin(account: Account, starts: readonly Start[]): Begun {
  if (account.state !== "ACTIVE") return { answers: starts.map(() => "pause"), aside: [], stops: false };
  // Who asks twice, because the first answer was lost, has it set aside once.
  for (const { item } of starts) account.ledger = settle(account.ledger, item.estimate, NOTHING);
  const estimates = starts.map(({ estimate }) => estimate);
  const { start, ledger, next } = howMany(account.ledger, estimates);
  account.ledger = ledger;
  const aside = starts.flatMap(({ item, estimate }, i) => {
    const wanted = i < start ? estimate : NOTHING;
    return isSame(item.estimate, wanted) ? [] : [{ item, wanted }];
  });
  const stops = next.kind === "pause";
  if (stops) account.blocked = { reason: next.reason, refused: estimates[start] as Amount };
  return { answers: starts.map((_, i) => (i < start ? "start" : next.kind)), aside, stops };
}
