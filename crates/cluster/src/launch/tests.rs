use super::*;

/// Variables as `NAME=VALUE` words.
fn check(words: &str) -> Result<Option<Launch>, String> {
    let pairs = words.split_whitespace().filter_map(|word| word.split_once('='));
    let variables = pairs.map(|(name, value)| (name.to_string(), value.to_string())).collect();
    launch(&variables).map_err(|error| error.to_string())
}

fn is(words: &str, rank: usize, ranks: usize, host: Option<&str>, port: u16, by: &str) {
    let found = check(words).expect("these variables are whole").expect("a launcher set them");
    let host = host.map(str::to_string);
    assert_eq!(
        (found.rank, found.ranks, found.host, found.port, found.launcher),
        (rank, ranks, host, port, by)
    );
}

#[test]
fn every_launcher_is_understood() {
    let torchrun = "RANK=1 WORLD_SIZE=4 MASTER_ADDR=10.0.0.1 MASTER_PORT=1234 LOCAL_RANK=1";
    is(torchrun, 1, 4, Some("10.0.0.1"), 1234, "torchrun");
    // Its agent serves a store on the port that it names.
    let agent = format!("{torchrun} TORCHELASTIC_USE_AGENT_STORE=True");
    is(&agent, 1, 4, Some("10.0.0.1"), 1235, "torchrun");
    let open_mpi = "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2";
    is(open_mpi, 0, 2, None, DEFAULT_PORT, "Open MPI's mpirun");
    is("PMI_RANK=3 PMI_SIZE=8", 3, 8, None, DEFAULT_PORT, "MPICH's mpirun");
    let srun = "SLURM_PROCID=2 SLURM_STEP_NUM_TASKS=4 SLURM_NTASKS=9 SLURM_STEP_NODELIST=";
    for (list, host) in
        [("n7", "n7"), ("a,b", "a"), ("gpu[03-05,9]", "gpu03"), ("r[1,4]x,b[2-3]", "r1x")]
    {
        is(&format!("{srun}{list}"), 2, 4, Some(host), DEFAULT_PORT, "srun");
    }
    let group = "LWS_WORKER_INDEX=1 LWS_GROUP_SIZE=2 LWS_LEADER_ADDRESS=m-0.m.default";
    is(group, 1, 2, Some("m-0.m.default"), DEFAULT_PORT, "LeaderWorkerSet");
}

#[test]
fn the_inner_launcher_counts_and_a_batch_script_is_none() {
    is(
        "RANK=0 WORLD_SIZE=2 MASTER_ADDR=h MASTER_PORT=9 SLURM_PROCID=3 SLURM_STEP_NUM_TASKS=4",
        0,
        2,
        Some("h"),
        9,
        "torchrun",
    );
    assert_eq!(check("HOME=/root SLURM_PROCID=0 SLURM_NTASKS=4"), Ok(None));
}

#[test]
fn what_is_missing_or_wrong_is_named() {
    for (words, named) in [
        ("RANK=0", "WORLD_SIZE is not set"),
        ("RANK=0 WORLD_SIZE=2", "MASTER_ADDR is not set"),
        ("RANK=2 WORLD_SIZE=2 MASTER_ADDR=h MASTER_PORT=1", "RANK is 2 and WORLD_SIZE is 2"),
        ("RANK=-1 WORLD_SIZE=2 MASTER_ADDR=h MASTER_PORT=1", "`-1`"),
        ("RANK=0 WORLD_SIZE=2 MASTER_ADDR=h MASTER_PORT=70000", "`70000`"),
        ("PMI_RANK=0 PMI_SIZE=0", "PMI_SIZE is 0"),
        ("SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1 SLURM_STEP_NODELIST=a[", "node list"),
        ("SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1 SLURM_STEP_NODELIST=a[x-2]", "node list"),
        ("SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1 SLURM_STEP_NODELIST=,b", "node list"),
    ] {
        let error = check(words).expect_err(words);
        assert!(error.contains(named), "{words}: {error}");
    }
}
