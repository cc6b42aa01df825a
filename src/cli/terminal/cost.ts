import { InvalidArgumentError } from "commander";
import type { Cost } from "../../core/cost.ts";

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
