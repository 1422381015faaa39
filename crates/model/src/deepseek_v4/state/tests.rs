use super::*;

#[test]
fn ranks_of_different_kinds_do_not_meet() {
    let of = |backend: &'static str, step_rows_max: usize| {
        let options = Options { step_rows_max, ..Options::default() };
        Kept { backend, options, ..Kept::default() }
    };
    let (cpu, cuda) = (of("cpu", 512), of("cuda", 512));
    assert_eq!(cpu.meets(&of("cpu", 512).meeting()), Ok(()));
    let refused = cpu.meets(&cuda.meeting()).expect_err("kinds differ");
    assert_eq!(refused, "it runs on cpu and rank 0 on cuda, which give other bits");
    assert!(cuda.meets(&cpu.meeting()).is_err());
    for other in [of("cpu", 256).meeting(), of("cuda", 256).meeting(), Vec::new()] {
        let refused = cpu.meets(&other).expect_err("settings differ");
        assert!(refused.contains("rows a step"), "{refused}");
    }
}
