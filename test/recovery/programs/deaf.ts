/** Ignores SIGTERM. */
process.on("SIGTERM", () => console.log("I heard"));
setInterval(() => {}, 60_000);
console.log("ready");
