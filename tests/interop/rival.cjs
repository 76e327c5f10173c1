// A process that locks with node-redlock, step by step as it is told: see rival.py.
//
//     node rival.cjs FOLDER MODULE PORT KEY
//
// FOLDER has the packages; MODULE is redlock4, which is what npm installs, or redlock5, which many pin: a beta for years.
"use strict";

const fs = require("fs");
const path = require("path");
const readline = require("readline");

const [folder, module_, port, key] = process.argv.slice(2);
const installed = (name) => require(path.join(folder, "node_modules", name));

const Redis = installed("ioredis");
const redis = new Redis(Number(port), "127.0.0.1");
const Redlock = installed(module_).default ?? installed(module_);
const redlock = new Redlock([redis], { retryCount: 0 });
for (const event of ["clientError", "error"]) redlock.on(event, () => {}); // whoever asked is told as well

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

async function whether(step) {
  try {
    await step();
    return true;
  } catch {
    return false;
  }
}

let lock;

const steps = {
  take: (ms) => whether(async () => (lock = await redlock.acquire([key], Number(ms)))),
  extend: (ms) => whether(async () => (lock = await lock.extend(Number(ms)))),
  free: () => whether(() => (lock.release ?? lock.unlock).call(lock)),
  count: async (file, rounds) => {
    for (let round = 0; round < Number(rounds); round++) {
      while (!(await steps.take(10_000))) await pause(10);
      const seen = Number(fs.readFileSync(file, "ascii"));
      await pause(1); // what makes it lose updates if two are here
      fs.writeFileSync(file, String(seen + 1));
      await steps.free();
    }
    return Number(rounds);
  },
};

async function main() {
  console.log("true");
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const [step, ...args] = line.split(" ");
    console.log(JSON.stringify(await steps[step](...args)));
  }
  redis.disconnect();
}

main();
