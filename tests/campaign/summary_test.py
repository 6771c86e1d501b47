#!/usr/bin/env python3
"""summary_test.py: what campaign.py counts and writes after its cases. The cases themselves are stand-ins: nothing is run."""
import argparse, contextlib, io, json, pathlib, tempfile, unittest

import campaign


class SummaryTest(unittest.TestCase):
    def run_campaign(self, results, **options):
        """Exit code and JSON of a campaign whose cases end as `results` says: one a case, or one a job of kills."""
        with tempfile.TemporaryDirectory() as folder:
            told = pathlib.Path(folder) / "told.json"
            args = argparse.Namespace(seed=1, cases=0, kills=0, seconds=0, part="1/1", only=None, launchers="mpirun", machine="",
                                      faults=None, verbose=False, json=str(told), work=folder + "/work")
            vars(args).update(options)
            these = campaign.Campaign(args)
            these.all_cases = lambda: [("signal", result) for result in results]
            these.signal_case = lambda result: result
            these.kills = lambda count: results
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                code = these.run()
            return code, json.loads(told.read_text())

    @staticmethod
    def case(exit_code, fault="usr1", failures=()):
        return {"fault": fault, "phase": "run", "exit_code": exit_code, "failures": list(failures)}

    def test_cases(self):
        code, told = self.run_campaign([self.case(75), self.case(0), self.case(0), self.case(0), self.case(70, "kill", ["70"])])
        self.assertEqual((code, told["cases"], told["failed"], told["kills"], len(told["results"])), (1, 5, 1, 0, 5))

    def test_kills(self):
        results = [{"fault": "kill", "kills": 2, "runs": 3, "failures": []}, {"fault": "kill", "kills": 1, "runs": 1, "failures": []}]
        code, told = self.run_campaign(results, kills=3)
        self.assertEqual((code, told["cases"], told["failed"], told["kills"]), (0, 2, 0, 3))
        self.assertEqual(told["results"], results)

    def test_signals_that_stop_nothing_are_a_failure_with_an_entry(self):
        code, told = self.run_campaign([self.case(0)] * campaign.ENOUGH_STOPS)
        self.assertEqual((code, told["cases"], told["failed"]), (1, campaign.ENOUGH_STOPS, 1))
        self.assertEqual([entry["failures"] for entry in told["results"] if entry["failures"]], [[f"stopped none of {campaign.ENOUGH_STOPS} runs"]])

    def test_nothing_done_is_a_failure(self):
        self.assertEqual(self.run_campaign([])[0], 1)


if __name__ == "__main__":
    unittest.main()
