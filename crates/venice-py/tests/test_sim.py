"""Experiments in simulated worlds. Needs no rack."""

import contextlib
import io
import math
import os
import signal
import tempfile
import unittest
from pathlib import Path

import venice
from venice import sim



def small() -> sim.Experiment:
    """Returns an incast of two servers, with few points."""
    return sim.experiment("incast-1g").quick().set("application.iterations", 3)


class Experiments(unittest.TestCase):
    def test_shipped_are_listed(self) -> None:
        names = [shipped.name for shipped in sim.experiments()]
        self.assertIn("incast-1g", names)
        self.assertIn("venice-rack", names)
        for name in names:
            experiment = sim.experiment(name)
            self.assertEqual(experiment.name, name)
            self.assertGreater(len(experiment.points()), len(experiment.quick().points()))

    def test_changes_make_others(self) -> None:
        experiment = small()
        changed = experiment.set({"seed": 7, "topology.tor.switch.latency": "2us"}).sweep("servers", [1, 4])
        self.assertEqual((changed.config["seed"], experiment.config["seed"]), (7, 1))
        servers = {point["servers"] for point in changed.points()}
        self.assertEqual(servers, {1, 4})
        self.assertEqual({point["servers"] for point in changed.points("servers=4")}, {4})
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "mine.toml"
            file.write_text(changed.to_toml())
            self.assertEqual(sim.read(file).to_toml(), changed.to_toml())

    def test_mistakes_name_the_key(self) -> None:
        mistakes = [
            (lambda: sim.experiment("incast1g"), "did you mean incast-1g"),
            (lambda: small().set("topology.tor.switch.latncy", 1).points(), "latency"),
            (lambda: small().set("seed", None), "seed: "),
            (lambda: small().set("seed", math.nan), "seed: nan"),
            (lambda: small().set("seed", "x" * 3).run(), "seed"),
            (lambda: small().sweep("servers", []), "servers"),
            (lambda: small().points("server=1"), "server"),
            (lambda: small().run(threads=0), "threads: 0"),
        ]
        for make, words in mistakes:
            with self.assertRaises(venice.Invalid) as raised:
                make()
            self.assertIn(words, str(raised.exception))
        with tempfile.TemporaryDirectory() as folder:
            with self.assertRaises(FileNotFoundError):
                sim.load(folder)
            (Path(folder) / "results.json").write_text("{}")
            with self.assertRaises(venice.Invalid):
                sim.load(folder)
            (Path(folder) / "bad.toml").write_text("name = 7")
            with self.assertRaisesRegex(venice.Invalid, "bad.toml: line 1"):
                sim.read(Path(folder) / "bad.toml")


class Runs(unittest.TestCase):
    def test_results_have_figures(self) -> None:
        told: list[sim.Progress] = []
        results = small().run("servers=1", progress=told.append)
        ran = [point for point in results.points if point.state == "done"]
        self.assertEqual({point.place["servers"] for point in ran}, {1})
        self.assertLess(len(ran), len(results.points))
        point = ran[0]
        self.assertGreater(point["goodput"], 0)
        self.assertEqual(point.unit("goodput"), "Mb/s")
        self.assertTrue(point.events > 0 and point.virtual_s > 0 and len(point.trace_hash) == 16)
        self.assertEqual({at.points for at in told}, {len(ran)})
        rows = results.rows(["goodput"])
        self.assertEqual([row["goodput"] for row in rows], [point["goodput"] for point in ran])
        self.assertIn(None, [finding.holds for finding in results.findings])
        self.assertIn("<td>", results._repr_html_())

    def test_runs_repeat(self) -> None:
        hashes = [
            [point.trace_hash for point in small().run("servers=1", threads=threads).points]
            for threads in (1, 2)
        ]
        self.assertEqual(*hashes)

    def test_histograms_add_up(self) -> None:
        experiment = sim.experiment("memcached-tail").quick().set("application.requests", 2)
        results = experiment.run("nodes=500,setup=UDP 1 Gb/s", progress=False)
        point = next(point for point in results.points if point.state == "done")
        latency = point.histogram("latency")
        self.assertEqual(sum(latency.counts), point["done"])
        values, shares = latency.cdf()
        self.assertEqual((values, shares[-1]), (sorted(values), 1.0))
        with self.assertRaises(KeyError):
            point.histogram("latencies")

    def test_results_are_kept(self) -> None:
        results = small().run("servers=1")
        with tempfile.TemporaryDirectory() as folder:
            results.save(Path(folder) / "mine")
            again = sim.load(Path(folder) / "mine")
        self.assertEqual(again.rows(), results.rows())

    def test_interrupt_keeps_results(self) -> None:
        def interrupt(at: sim.Progress) -> None:
            if at.done == 1:
                os.kill(os.getpid(), signal.SIGINT)

        with self.assertRaises(sim.Interrupted) as raised:
            small().set("application.iterations", 100).run(progress=interrupt)
        results = raised.exception.results
        self.assertTrue(results.interrupted)
        states = [point.state for point in results.points]
        self.assertEqual(states[0], "done")
        self.assertIn("not-run", states)

    def test_callbacks_may_fail(self) -> None:
        def fail(_: sim.Progress) -> None:
            raise ZeroDivisionError

        with self.assertRaises(ZeroDivisionError):
            small().run(progress=fail)

    def test_no_line_without_terminal(self) -> None:
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            small().run("servers=1")
        self.assertEqual(said.getvalue(), "")


if __name__ == "__main__":
    unittest.main()
