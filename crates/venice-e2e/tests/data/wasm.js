// A module of WebAssembly, by hand: one memory, fill(n) writes a sequence and sum(n) reads it back, shuffled.
const b = (...x) => x.flat();
const leb = n => { const o = []; do { let c = n & 127; n >>>= 7; o.push(n ? c | 128 : c); } while (n); return o; };
const sec = (id, body) => [id, ...leb(body.length), ...body];
const vec = items => [...leb(items.length), ...items.flat()];
const i32 = 0x7f;
// (func (param n) (result i32) (local i h): i from 0 to n: mem[i*4] = h = h*1664525+1013904223 ; return h
const sleb = n => { const o = []; for (;;) { let c = n & 127; n >>= 7; if ((n === 0 && !(c & 64)) || (n === -1 && (c & 64))) { o.push(c); return o; } o.push(c | 128); } };
const body = code => { const c = [...vec([[2, i32]]), ...code, 0x0b]; return [...leb(c.length), ...c]; };
const loop = inner => [0x03, 0x40, ...inner, 0x20, 1, 0x41, 1, 0x6a, 0x22, 1, 0x20, 0, 0x49, 0x0d, 0, 0x0b, 0x20, 2];
const fill = body(loop([0x20, 2, 0x41, ...sleb(1664525), 0x6c, 0x41, ...sleb(1013904223), 0x6a, 0x21, 2, 0x20, 1, 0x41, 2, 0x74, 0x20, 2, 0x36, 2, 0]));
const sum = body(loop([0x20, 2, 0x41, 33, 0x6c, 0x20, 1, 0x41, ...sleb(7919), 0x6c, 0x20, 0, 0x70, 0x41, 2, 0x74, 0x28, 2, 0, 0x6a, 0x21, 2]));
const module = new Uint8Array(b([0, 97, 115, 109, 1, 0, 0, 0],
  sec(1, vec([[0x60, 1, i32, 1, i32]])), sec(3, vec([[0], [0]])), sec(5, vec([[0, ...leb(16)]])),
  sec(7, vec([[3, 109, 101, 109, 2, 0], [1, 102, 0, 0], [1, 115, 0, 1]])), sec(10, vec([fill, sum]))));
const m = new WebAssembly.Instance(new WebAssembly.Module(module)).exports;
const words = 8000000;
m.mem.grow(Math.ceil(words * 4 / 65536));
console.log(m.f(words) >>> 0, m.s(words) >>> 0);
const map = new Map(); for (let i = 0; i < 150000; i++) map.set('k' + i, {i, s: 'v' + i * 7});
let h = 0; for (const [k, v] of map) h = (h * 31 + k.length + v.i + v.s.length) >>> 0; console.log(h);
try { m.f(16 << 20); console.log('no trap'); } catch (e) { console.log(e.message); }
