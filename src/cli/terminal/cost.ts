import { InvalidArgumentError } from "commander";
import { type Cost, sayAmount, sayUnit, toAmount } from "../../core/cost.ts";
import { number } from "./text.ts";

/** `10` and `usd=10` are dollars, `usd=10,tokens=100000` is both. */
export function costGiven(text: string): Cost {
  const cost: Cost = {};
  for (const part of text.split(",")) {
    const [, name = "usd", value = ""] = /^\s*(?:(usd|tokens)\s*=)?\s*\$?(\d+(?:\.\d+)?)\s*$/.exec(part) ?? [];
    if (value === "" || name in cost) throw new InvalidArgumentError("Give dollars, e.g. 10, or usd=10,tokens=100000.");
    cost[name as keyof Cost] = Number(value);
  }
  return cost;
}

/** `$1.25 and 300 tokens`. */
export function sayCost(cost: Cost): string {
  return sayAmount(toAmount(cost, "A cost"));
}

/** `$1.20 of $5.00`, `300 of 1,000 tokens`, and what has no limit alone; empty where nothing is spent and nothing is limited. */
export function saySpent(spent: Required<Cost>, budget: Cost): string {
  const said: string[] = [];
  const usd = sayUnit("micros", toAmount({ usd: spent.usd }, "A cost").micros);
  if (budget.usd !== undefined) said.push(`${usd} of ${sayCost({ usd: budget.usd })}`);
  else if (spent.usd > 0) said.push(usd);
  if (budget.tokens !== undefined) said.push(`${number(spent.tokens)} of ${number(budget.tokens)} tokens`);
  else if (spent.tokens > 0) said.push(`${number(spent.tokens)} tokens`);
  return said.join(", ");
}
