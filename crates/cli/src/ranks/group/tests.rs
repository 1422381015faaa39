use super::*;
use crate::flags::Rdma;
use ironstar_model::Stages;

/// The example of the documentation, in the first block of JSON there.
fn documented() -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/ranks.md");
    let text = std::fs::read_to_string(path).expect("the page is in the repository");
    let (_, after) = text.split_once("```json\n").expect("it shows a file");
    let (example, _) = after.split_once("```").expect("the block ends");
    example.to_owned()
}

fn group(text: &str) -> Result<Group, String> {
    let path = std::path::Path::new("/etc/ironstar/cluster.json");
    let file = ClusterFile::parse(text)?;
    file.group(path, 1).map_err(|failure| failure.message)
}

#[test]
fn the_documented_file_is_a_pipeline_of_two() {
    let found = group(&documented()).expect("the page is right");
    let layers = found.layers.expect("a pipeline");
    assert_eq!(layers.cut, Some(Stages::parse("0-20,21-42").expect("a cut")));
    assert_eq!((found.ranks, found.transport), (2, Transport::Tcp));
    assert_eq!(found.listen, Some("10.0.0.1:7000".parse().expect("an address")));
    assert_eq!(found.key_file, Some("/etc/ironstar/cluster.key".into()));
}

#[test]
fn errors_name_line_and_key() {
    let whole = documented();
    let changed = |from: &str, to: &str| {
        let text = whole.replacen(from, to, 1);
        assert_ne!(text, whole, "`{from}` is in the example");
        group(&text).expect_err("it is wrong")
    };
    for (from, to, words) in [
        ("\"mode\"", "\"mood\"", &["unknown field `mood`", "line 2"][..]),
        ("\"pipeline\"", "\"both\"", &["unknown variant `both`", "line 2", "`mode`"]),
        ("\"10.0.0.1:7000\"", "7", &["line 3", "`listen`"]),
        ("\"0-20\"", "20", &["expected a string", "`layers`"]),
        ("\"0-20\"", "\"0-21\"", &["`layers`", "begins with layer 22"]),
        ("\"tcp\"", "\"carrier\"", &["unknown variant `carrier`", "`transport`"]),
        ("\"pipeline\"", "\"tensor\"", &["`layers` of rank 0", "`pipeline`"]),
        ("32", "12", &["`activation_bits` is 32, 16 or 8"]),
        ("\"layers\"", "\"gid\": 3, \"layers\"", &["`gid` of rank 0", "`verbs`"]),
    ] {
        let found = changed(from, to);
        assert!(words.iter().all(|word| found.contains(word)), "{from} -> {to}: {found}");
    }
    let alone = r#"{"mode": "tensor", "listen": "127.0.0.1:7000", "ranks": [{}]}"#;
    assert!(group(alone).expect_err("one rank").contains("2 or more"));
    assert!(group("[1").expect_err("no file").contains("line 1"));
}

fn launched(rank: usize, host: Option<&str>) -> Launch {
    let host = host.map(str::to_owned);
    Launch { rank, ranks: 2, host, port: 29_570, launcher: "srun" }
}

fn flags() -> Ranks {
    Ranks {
        ranks: RankCount::Of(1),
        stages: None,
        layers: None,
        activation_bits: 32,
        transport: None,
        devices: Vec::new(),
        gates: None,
        listen: None,
        rank_key_file: None,
        trusted_link: false,
        cluster: None,
        rdma: Rdma::default(),
        profile_gates: None,
        fake_gates: false,
        recorder: ironstar_cluster::Recorder::default(),
        launch: None,
    }
}

#[test]
fn a_rank_has_its_own_rdma_device_and_flags_count_more() {
    let text = documented().replace("\"tcp\"", "\"verbs\"");
    let text = text.replacen("\"0-20\"", "\"0-20\", \"device\": \"mlx5_0\"", 1);
    let text = text.replacen("\"21-42\"", "\"21-42\", \"device\": \"mlx5_1\", \"gid\": 3", 1);
    let found = group(&text).expect("rank 1's");
    assert_eq!((found.rdma.device.as_deref(), found.rdma.gid), (Some("mlx5_1"), Some(3)));
    assert_eq!(found.transport, Transport::Verbs);
    let flags = Rdma { rdma_gid: Some(5), ..Rdma::default() };
    let over = flags.over(found.rdma);
    assert_eq!((over.device.as_deref(), over.gid), (Some("mlx5_1"), Some(5)));
    assert_eq!(flags.words(), ["--rdma-gid", "5", "--rdma-connection", "any"]);
    let error = group(&text.replace("\"gid\": 3", "\"gid\": 300")).expect_err("no such index");
    assert!(error.contains("`gid` of rank 1"), "{error}");
}

#[test]
fn flags_say_how_many_and_how_cut() {
    let of = |flags: Ranks| Group::of_flags(&flags).map_err(|failure| failure.message);
    assert_eq!(of(flags()).expect("one").ranks, 1);
    let cut = Ranks { layers: Some("0-1,2-7,8".into()), ..flags() };
    assert_eq!(of(cut).expect("three").ranks, 3);
    let stages = Ranks { stages: Some(4), ..flags() };
    let stages = of(stages).expect("four");
    assert!(stages.ranks == 4 && stages.layers.is_some_and(|layers| layers.cut.is_none()));
    let auto = Ranks { ranks: RankCount::Auto, ..flags() };
    let auto = Ranks { launch: Some(launched(0, Some("127.0.0.1"))), ..auto };
    let led = of(auto).expect("two");
    assert_eq!((led.ranks, led.listen), (2, "127.0.0.1:29570".parse().ok()));
    assert_eq!(led.transport, Transport::Tcp, "launched ranks may be on several machines");
    for (flags, words) in [
        (Ranks { ranks: RankCount::Of(2), stages: Some(3), ..flags() }, "3 nodes"),
        (Ranks { layers: Some("1-2".into()), ..flags() }, "begins with layer 0"),
        (Ranks { stages: Some(1), ..flags() }, "2 or more"),
        (Ranks { activation_bits: 16, ..flags() }, "about a pipeline"),
        (Ranks { listen: "127.0.0.1:1".parse().ok(), ..flags() }, "how many"),
        (Ranks { ranks: RankCount::Auto, ..flags() }, "no launcher"),
    ] {
        let error = of(flags).expect_err("it cannot be");
        assert!(error.contains(words), "{error}");
    }
}
