pub fn nobody_calls_me() {}
