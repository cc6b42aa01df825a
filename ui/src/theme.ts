import { computed, effect, signal } from "@preact/signals";

export const THEMES = ["system", "light", "dark"] as const;
export type Theme = (typeof THEMES)[number];

const STORED = "holdfast-theme";
const prefersDark = matchMedia("(prefers-color-scheme: dark)");
const systemDark = signal(prefersDark.matches);
prefersDark.addEventListener("change", () => (systemDark.value = prefersDark.matches));

export const chosenTheme = signal<Theme>(stored());
/** What is drawn: the choice, or the system's. */
export const theme = computed(() => (chosenTheme.value === "system" ? (systemDark.value ? "dark" : "light") : chosenTheme.value));

effect(() => {
  document.documentElement.dataset["theme"] = theme.value;
});

export function chooseTheme(chosen: Theme): void {
  chosenTheme.value = chosen;
  try {
    localStorage.setItem(STORED, chosen);
  } catch {
    // A browser that stores nothing for this site forgets the choice.
  }
}

function stored(): Theme {
  try {
    return THEMES.find((one) => one === localStorage.getItem(STORED)) ?? "system";
  } catch {
    return "system";
  }
}
