"""Molecules: SMILES columns to fingerprints and predictions, what cannot be read, and the named sets."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import stochgp
from benchmarks.datasets import load
from benchmarks.datasets.molecule_sets import DOCKSTRING, load_molecules
from stochgp import KernelGPRegressor
from stochgp.cli import main
from stochgp.data import Morgan
from stochgp.tables.molecules import FingerprintEncoder, fingerprints_of

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
pytest.importorskip("rdkit", reason="molecules need the extra `molecules`")

SMILES = [
    "CCO",
    "CCCO",
    "c1ccccc1",
    "CC(=O)O",
    "CCN",
    "c1ccccc1O",
    "CCCCCC",
    "OCC(O)CO",
    "CC(C)C",
    "CCCl",
    "C1CCCCC1",
    "NCCO",
]
Y = np.array([len(text) + 3.0 * text.count("O") for text in SMILES])
SETTINGS = {"kernel": "tanimoto", "learner": None}


@pytest.fixture
def table():
    return pd.DataFrame({"molecule": SMILES})


@pytest.mark.parametrize("chirality", [False, True])
@pytest.mark.parametrize("morgan", [Morgan(), Morgan(radius=1, n_bits=64), Morgan(counts=False)])
def test_fingerprints_are_those_of_rdkit(morgan, chirality):
    from rdkit import Chem
    from rdkit.Chem.rdFingerprintGenerator import GetMorganGenerator

    smiles = [*SMILES, "N[C@@H](C)C(=O)O", "N[C@H](C)C(=O)O"]
    found, bad = fingerprints_of(smiles, dataclasses.replace(morgan, chirality=chirality))
    generator = GetMorganGenerator(radius=morgan.radius, fpSize=morgan.n_bits, includeChirality=chirality)
    for row, text in zip(found.toarray(), smiles, strict=True):
        molecule = Chem.MolFromSmiles(text)
        make = generator.GetCountFingerprintAsNumPy if morgan.counts else generator.GetFingerprintAsNumPy
        np.testing.assert_array_equal(row, make(molecule))
    assert not bad.any()
    mirrored = found.toarray()[-2:]
    assert np.array_equal(*mirrored) != chirality


def test_a_column_of_molecules_is_its_fingerprints(table, tmp_path):
    counts, _ = fingerprints_of(SMILES, Morgan())
    model = KernelGPRegressor(**SETTINGS).fit(table, Y)
    from_counts = KernelGPRegressor(**SETTINGS).fit(counts, Y)
    np.testing.assert_array_equal(model.predict(table), from_counts.predict(counts))
    assert list(model.feature_names_in_) == ["molecule"]
    assert "Morgan counts of radius 2 in 2048 columns, of column 'molecule'" in model.plan_["inputs"]["why"]
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(
        stochgp.load(tmp_path / "model").predict(table.assign(name=1)), model.predict(table)
    )
    packed = Morgan()(table["molecule"])
    of_packed = KernelGPRegressor(**SETTINGS).fit(packed[:9], Y[:9])
    of_counts = KernelGPRegressor(**SETTINGS).fit(counts[:9], Y[:9])
    np.testing.assert_allclose(of_packed.predict(packed), of_counts.predict(counts), rtol=1e-9)


def test_what_cannot_be_read_is_refused_by_row_or_skipped(table):
    bad = table.copy()
    bad["molecule"] = bad["molecule"].astype(object)
    bad.loc[[2, 5, 7], "molecule"] = ["C1CC", "", None]
    for rows, shown in ((bad, "'C1CC'"), (bad.drop(index=2), "empty"), (bad.drop(index=[2, 5]), "missing")):
        with pytest.raises(
            ValueError, match=r"column 'molecule' has \d molecule\(s\) that cannot be read"
        ) as found:
            KernelGPRegressor(**SETTINGS).fit(rows, Y[rows.index])
        assert (
            shown in str(found.value)
            and "skip_unreadable=True" in str(found.value)
            and "\n" not in str(found.value)
        )
    morgan, skipping = Morgan(skip_unreadable=True), KernelGPRegressor(**SETTINGS)
    with pytest.warns(
        UserWarning,
        match=r"3 molecule\(s\) cannot be read and are ignored: data rows 3, 6, 8 \(rows count from 1\)",
    ):
        skipping.fit(morgan(bad["molecule"]), Y)
    kept = np.setdiff1d(np.arange(len(Y)), [2, 5, 7])
    wanted = KernelGPRegressor(**SETTINGS).fit(table.iloc[kept], Y[kept])
    mean, std = skipping.predict(Morgan(skip_unreadable=True)(bad["molecule"]), return_std=True)
    np.testing.assert_array_equal(mean[kept], wanted.predict(table.iloc[kept]))
    assert np.isnan(mean[[2, 5, 7]]).all() and np.isnan(std[[2, 5, 7]]).all()
    with pytest.raises(ValueError, match="none of the 12 molecules can be read"):
        morgan(["C1CC"] * 12)


def test_contradictions_are_refused_in_one_line(table):
    model = KernelGPRegressor(**SETTINGS).fit(table, Y)
    with pytest.raises(ValueError, match="column 'molecule' is not in the table; did you mean 'molecules'"):
        model.predict(table.rename(columns={"molecule": "molecules"}))
    with pytest.raises(ValueError, match="the table has the columns 'molecule', 'name'"):
        KernelGPRegressor(**SETTINGS).fit(table.assign(name=1), Y)
    with pytest.raises(ValueError, match="column 'molecule' must contain SMILES, but has the kind 'number'"):
        model.predict(pd.DataFrame({"molecule": [1.0]}))
    with pytest.raises(ValueError, match="molecules must be in the column"):
        model.predict(np.eye(12))
    with pytest.raises(ValueError, match="Input y contains NaN: 1 such .*, the first at row 2"):
        KernelGPRegressor(**SETTINGS).fit(table, np.where(np.arange(12) == 1, np.nan, Y))
    with pytest.raises(ValueError, match="at least 1 bit"):
        Morgan(n_bits=0)


def test_the_command_line_fits_and_predicts_a_column_of_molecules(table, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    table.assign(y=Y).to_csv("train.csv", index=False)
    table.to_parquet("new.parquet")
    options = ["--set", "kernel=tanimoto", "--quiet", "--json", "--out", "m"]
    assert main(["fit", "train.csv", "--target", "y", "--model", "kernel", *options]) == 0
    assert json.loads(capsys.readouterr().out)["n_train"] == 12
    assert main(["predict", "m", "new.parquet", "--out", "out.csv"]) == 0
    np.testing.assert_allclose(pd.read_csv("out.csv")["mean"], stochgp.load("m").predict(table), rtol=1e-6)
    table.assign(y=Y, molecule=["C1CC", *SMILES[1:]]).to_csv("bad.csv", index=False)
    assert main(["fit", "bad.csv", "--target", "y", "--model", "kernel", *options]) == 2
    assert (
        "bad.csv: column 'molecule' has 1 molecule(s) that cannot be read, the first at data row 1"
        in capsys.readouterr().err
    )


def test_named_sets_of_molecules(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="did you mean 'mol:chembl:CHEMBL205'"):
        load("mol:chembl:CHEMBL20")
    folder = tmp_path / "dockstring"
    folder.mkdir()
    (folder / "dockstring-dataset.tsv").write_text(
        "inchikey\tsmiles\tPARP1\tF2\nA\tCCO\t-7.5\t\nB\tCCN\t12.0\t-3\nC\tCCC\t\t-4\nD\tCCCC\t-6.0\t-5\n"
    )
    (folder / "cluster_split.tsv").write_text(
        "inchikey\tsmiles\tsplit\nA\t_\ttrain\nB\t_\ttest\nC\t_\ttrain\nD\t_\ttrain\n"
    )
    monkeypatch.setenv("STOCHGP_DATA", str(tmp_path))
    found = load("mol:dockstring:PARP1")
    np.testing.assert_array_equal(found.y, [-7.5, -6.0])
    np.testing.assert_array_equal(found.y_test, [5.0])  # clipped
    assert load_molecules("mol:dockstring:PARP1").morgan == Morgan(radius=1, n_bits=1024)
    assert DOCKSTRING["PARP1"] == (0.560, 0.024, -6.95)


@pytest.mark.skipif(not (SHARED / "molecules").is_dir(), reason="needs the data sets in ../shared/data")
def test_esol_and_chembl_where_they_are(monkeypatch):
    monkeypatch.setenv("STOCHGP_DATA", str(SHARED))
    esol = load("mol:esol", test_fraction=0.2)
    assert esol.X.shape == (902, 2048) and esol.X_test.shape == (226, 2048)
    assert esol.target_name == "log_solubility_mol_per_l" and np.isfinite(esol.y).all()
    chembl = load_molecules("mol:chembl:CHEMBL205")
    assert len(chembl.smiles) == len(chembl.y) > 500 and np.isfinite(chembl.y).all()
    encoder, words = FingerprintEncoder.fit(pd.DataFrame({"s": esol_smiles()}), "s")
    assert words.nbytes < 800 * len(words) and encoder.named


def esol_smiles():
    return load_molecules("mol:esol").smiles
