const DAYS = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];
const NAMED: Record<string, string> = {
  "@yearly": "0 0 1 1 *",
  "@annually": "0 0 1 1 *",
  "@monthly": "0 0 1 * *",
  "@weekly": "0 0 * * 0",
  "@daily": "0 0 * * *",
  "@hourly": "0 * * * *",
};

/** The usual patterns in words; null for the others, of which words would be longer than the pattern. */
export function cronInWords(cron: string): string | null {
  const [minute = "", hour = "", day = "", month = "", weekday = "", ...more] = (NAMED[cron] ?? cron).trim().split(/\s+/);
  if (more.length > 0 || weekday === "" || month !== "*") return null;
  const isDaily = day === "*" && weekday === "*";
  const every = /^\*(?:\/(\d+))?$/;
  const minutes = every.exec(minute);
  if (minutes !== null && hour === "*" && isDaily)
    return minutes[1] === undefined ? "Every minute" : `Every ${minutes[1]} minutes`;
  if (!/^\d+$/.test(minute)) return null;
  const hours = every.exec(hour);
  const past = minute === "0" ? "" : `, at minute ${minute}`;
  if (hours !== null && isDaily) return hours[1] === undefined ? `Every hour${past}` : `Every ${hours[1]} hours${past}`;
  if (!/^\d+$/.test(hour)) return null;
  const at = `${hour.padStart(2, "0")}:${minute.padStart(2, "0")}`;
  if (isDaily) return `Every day at ${at}`;
  if (day === "*" && weekday === "1-5") return `Monday to Friday at ${at}`;
  if (day === "*" && /^[0-7]$/.test(weekday)) return `Every ${DAYS[Number(weekday)]} at ${at}`;
  if (weekday === "*" && day === "L") return `Last day of every month at ${at}`;
  if (weekday === "*" && /^\d+$/.test(day)) return `Day ${day} of every month at ${at}`;
  return null;
}
